/**
 * Charges projects for the time in which they are served, once a minute. A month has 730 hours; what is less than a
 * millionth of a dollar is carried over to the next minute, so nothing is lost or charged twice by rounding.
 *
 * Time in which no gateway ran is not charged: apps are reached through it. A pool never falls below zero here. When it
 * is empty, the wallet's apps pause until the next payment.
 */
import type { Tx } from '../db/connect.ts'
import type { ProjectRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { IS_CHARGED } from '../projects/statuses.ts'
import type { Sweep } from '../sweep.ts'
import { minMicro } from './money.ts'
import { addEntry, lockWallet } from './pool.ts'
import { pauseProjects } from './stop-unpaid.ts'

const MONTH_MS = 730n * 3_600_000n
/** A longer gap means that no gateway was running. */
const GAP_MAX_MS = 180_000

export const meterProjects: Sweep = {
  name: 'meter-projects',
  everyMs: 60_000,
  async run(deps) {
    const wallets = await deps.db
      .selectFrom('gateway.projects')
      .select('wallet')
      .distinct()
      .where('status', 'in', IS_CHARGED)
      .where('deleted_at', 'is', null)
      .execute()
    for (const { wallet } of wallets) await deps.db.transaction().execute((tx) => meterWallet(tx, deps, wallet))
  },
}

async function meterWallet(tx: Tx, deps: Deps, wallet: string): Promise<void> {
  let poolMicro = (await lockWallet(tx, wallet))!
  const projects = await tx
    .selectFrom('gateway.projects')
    .selectAll()
    .where('wallet', '=', wallet)
    .where('status', 'in', IS_CHARGED)
    .where('deleted_at', 'is', null)
    .orderBy('created_at')
    .forUpdate()
    .execute()
  const now = deps.now()
  for (const project of projects) {
    const { due, remainder } = calculateUsage(project, BigInt(deps.config.monthlyRateMicroUsd), now)
    const charged = minMicro(due, poolMicro)
    await tx
      .updateTable('gateway.projects')
      .set({ metered_until: now, meter_remainder: remainder })
      .where('id', '=', project.id)
      .execute()
    if (charged <= 0n) continue
    await addEntry(tx, { kind: 'usage', wallet, amountMicro: -charged, projectId: project.id })
    poolMicro -= charged
  }
  if (poolMicro <= 0n && projects.length > 0) await pauseProjects(tx, wallet, now)
}

type Meter = Pick<ProjectRow, 'metered_until' | 'meter_remainder'>

/** `remainder` is in millionths of a dollar times milliseconds per month. */
export function calculateUsage(
  { metered_until, meter_remainder }: Meter,
  rateMicro: bigint,
  now: Date,
): { due: bigint; remainder: bigint } {
  const elapsedMs = metered_until ? now.getTime() - metered_until.getTime() : 0
  if (elapsedMs <= 0 || elapsedMs > GAP_MAX_MS) return { due: 0n, remainder: meter_remainder }
  const total = meter_remainder + rateMicro * BigInt(elapsedMs)
  return { due: total / MONTH_MS, remainder: total % MONTH_MS }
}
