/** Webhook events of networks, as expressions for the statements that cause them. Sandboxes that join or leave by being created or destroyed: migration 0008. */
import type { RawBuilder } from 'kysely'
import type { NetworkRow } from '../db/schema.ts'
import { emitting } from '../webhooks/emit.ts'

type EmittedNetwork = Pick<NetworkRow, 'id' | 'name' | 'user_id'>

export function emittingNetwork(action: 'network.create' | 'network.delete', network: EmittedNetwork): RawBuilder<null>
export function emittingNetwork(
  action: 'network.attach' | 'network.detach',
  network: EmittedNetwork,
  sandboxId: string,
): RawBuilder<null>
export function emittingNetwork(
  action: 'network.create' | 'network.delete' | 'network.attach' | 'network.detach',
  { id, name, user_id }: EmittedNetwork,
  sandboxId?: string,
): RawBuilder<null> {
  const common = { id, name, network_id: id }
  const data = sandboxId === undefined ? common : { ...common, sandbox_id: sandboxId }
  // The signatures above pair actions and data.
  return emitting({ userId: user_id, action, subject: sandboxId ?? id, data: data as never })
}
