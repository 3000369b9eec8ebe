/**
 * Replaces the egress rules of a sandbox, in every status except the terminal ones. The rules are in force when the
 * response is sent, unless the host cannot be reached. A sandbox that is not running gets them before it runs again.
 */
import { badField, wrongState } from '@warren/kit/failure'
import { type EgressPutBody, type EgressView, isTerminal, parseEgressRules, TERMINAL_STATUSES } from '@warren/protocol'
import type { SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { pushNetworks, raiseRevisions } from '../networks/host-network.ts'
import { emitting } from '../webhooks/emit.ts'
import { egressWarnings } from './warnings.ts'

export async function setEgress(deps: Deps, sandbox: SandboxRow, body: EgressPutBody): Promise<EgressView> {
  const egress = body.egress ?? []
  const rules = parseEgressRules(egress)
  if (typeof rules === 'string') throw badField({ egress: rules })
  if (isTerminal(sandbox.status)) throw wrongState(sandbox.status, 'a living sandbox')
  const { id, name, user_id } = sandbox
  await deps.db.transaction().execute(async (tx) => {
    const row = await tx
      .updateTable('sandboxes')
      .set({ egress })
      .where('id', '=', sandbox.id)
      .where('status', 'not in', [...TERMINAL_STATUSES])
      .returning(
        emitting({ userId: user_id, action: 'sandbox.egress.set', subject: id, data: { id, name, egress } }).as(
          'emitted',
        ),
      )
      .executeTakeFirst()
    if (!row) throw wrongState('destroyed', 'a living sandbox')
    await raiseRevisions(tx, [sandbox.id])
  })
  await pushNetworks(deps, [sandbox.id])
  return { id: sandbox.id, egress, ...egressWarnings(deps, egress) }
}
