/**
 * Adds outbound quota to a running sandbox, paid with credit for each started GiB. One transaction changes the quota,
 * charges the user and runs the caller's `commit` (which stores the response for an Idempotency-Key). Then the new quota
 * is sent to the host, and a capped sandbox can send again.
 */
import { failure, wrongState } from '@warren/kit/failure'
import { BANDWIDTH_UNMETERED, type BandwidthView, type RechargeBody } from '@warren/protocol'
import { addCredit, MICRO_PER_CREDIT } from '../credit/add.ts'
import { noteLowCredit } from '../credit/note-low.ts'
import type { Tx } from '../db/connect.ts'
import type { SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { pushNetworks, raiseRevisions } from '../networks/host-network.ts'
import type { LockedUser } from '../users/caps.ts'
import { withLockedUser } from '../users/locked.ts'
import { isCharged } from '../users/plans.ts'
import { emitting } from '../webhooks/emit.ts'
import { getBandwidth, viewBandwidth } from './get.ts'

const GIB = 1024 ** 3

type Commit = (tx: Tx, view: BandwidthView) => Promise<void>

export async function rechargeBandwidth(
  deps: Deps,
  sandbox: SandboxRow,
  { add_bytes }: RechargeBody,
  commit?: Commit,
): Promise<BandwidthView> {
  const row = await withLockedUser(deps.db, sandbox.user_id, async (tx, user) => {
    const found = await tx
      .selectFrom('sandboxes')
      .selectAll()
      .where('id', '=', sandbox.id)
      .forNoKeyUpdate()
      .executeTakeFirstOrThrow()
    if (found.status !== 'running') throw wrongState(found.status, 'running')
    const charged = await charge(deps, tx, found, user, add_bytes)
    await commit?.(tx, viewBandwidth(charged))
    return charged
  })
  await pushNetworks(deps, [row.id])
  return getBandwidth(deps, row)
}

/** An unmetered sandbox has no quota to add to, so it is not charged. */
async function charge(deps: Deps, tx: Tx, row: SandboxRow, user: LockedUser, addBytes: number): Promise<SandboxRow> {
  if (row.bandwidth_quota_bytes === BANDWIDTH_UNMETERED) return row
  const credits = isCharged(user.plan) ? Math.ceil(addBytes / GIB) * deps.config.rechargeCreditsPerGib : 0
  if (credits * MICRO_PER_CREDIT > user.credit_micro && credits > 0) {
    throw failure('insufficient_credit', `insufficient credit, this recharge costs ${credits}`)
  }
  if (credits > 0) {
    await addCredit(tx, row.user_id, -credits, {
      kind: 'bandwidth',
      reason: `bandwidth of ${row.id}`,
      sandboxId: row.id,
    })
    await noteLowCredit(deps, tx, user)
  }
  // The row is locked, so this is the sum that the statement stores.
  const quota = row.bandwidth_quota_bytes + addBytes
  const event = emitting({
    userId: row.user_id,
    action: 'sandbox.bandwidth.update',
    subject: row.id,
    data: { id: row.id, name: row.name, add_bytes: addBytes, quota_bytes: quota },
  })
  const charged = await tx
    .updateTable('sandboxes')
    .set({ bandwidth_quota_bytes: quota })
    .where('id', '=', row.id)
    .returningAll()
    .returning(event.as('emitted'))
    .executeTakeFirstOrThrow()
  await raiseRevisions(tx, [row.id])
  return charged
}
