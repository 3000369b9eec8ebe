/** Webhook events of networks. Sandboxes that join or leave by being created or destroyed: migration 0008. */
import type { Tx } from '../db/connect.ts'
import type { NetworkRow } from '../db/schema.ts'
import { emitEvent } from '../webhooks/emit.ts'

export function emitNetworkEvent(
  tx: Tx,
  action: 'network.create' | 'network.delete',
  network: NetworkRow,
): Promise<void>
export function emitNetworkEvent(
  tx: Tx,
  action: 'network.attach' | 'network.detach',
  network: NetworkRow,
  sandboxId: string,
): Promise<void>
export function emitNetworkEvent(
  tx: Tx,
  action: 'network.create' | 'network.delete' | 'network.attach' | 'network.detach',
  { id, name, user_id }: NetworkRow,
  sandboxId?: string,
): Promise<void> {
  const common = { id, name, network_id: id }
  const data = sandboxId === undefined ? common : { ...common, sandbox_id: sandboxId }
  // The signatures above pair actions and data.
  return emitEvent(tx, { userId: user_id, action, subject: sandboxId ?? id, data: data as never })
}
