/**
 * Pauses the apps of wallets without credit, resumes them after a payment, and deletes projects that stay unpaid for too long.
 * The meter, and a payment that its chain dropped, only change the rows (payments/stop-unpaid.ts).
 */
import type { SandboxStatus } from '@warren/protocol'
import { sql } from 'kysely'
import { isBetween } from '../control-plane/client.ts'
import { ControlPlaneError } from '../control-plane/error.ts'
import type { Deps } from '../deps.ts'
import { lockWallet } from '../payments/pool.ts'
import { deleteProjectRow } from '../projects/delete.ts'
import type { Sweep } from '../sweep.ts'

type Unpaid = {
  project: string
  wallet: string
  is_paid: boolean
  /** Null while the app has no sandbox: its supervisor was about to make another one when the credit ended. */
  sandbox: string | null
  name: string | null
  is_paused: boolean | null
}

export const applyCredit: Sweep = {
  name: 'apply-credit',
  everyMs: 3_000,
  async run(deps) {
    const { rows } = await sql<Unpaid>`
      select p.id as project, p.wallet, s.sandbox_id as sandbox, s.name, s.is_paused, w.balance_micro > 0 as is_paid
      from gateway.projects p
      join gateway.wallets w on w.address = p.wallet
      join gateway.deployments d on d.id = p.live_deployment_id
      left join gateway.sandboxes s on s.deployment_id = d.id and s.role = 'run' and s.attempt = d.attempt
      where p.status = 'pending' and p.paused_at is not null and p.deleted_at is null
        and (not s.is_paused or w.balance_micro > 0)`.execute(deps.db)
    for (const row of rows) {
      const work = row.is_paid ? resume(deps, row) : pause(deps, row)
      await work.catch((error) =>
        deps.log.warn({ err: error, project: row.project }, 'failed to apply the credit of a wallet'),
      )
    }
    await deleteUnpaid(deps)
  },
}

async function pause(deps: Deps, { sandbox, name }: Unpaid): Promise<void> {
  if (sandbox === null) return
  const status = await findStatus(deps, sandbox)
  if (status === 'running') await deps.controlPlane.pauseSandbox(sandbox)
  else if (status !== undefined && isBetween(status)) return // Until it is known where it ends.
  await deps.db.updateTable('gateway.sandboxes').set({ is_paused: true }).where('name', '=', name).execute()
}

/**
 * Served again only when the sandbox runs; one that is gone is made again by the supervisor, which looks after projects that
 * are active. Credit that was used up meanwhile is found under the lock.
 */
async function resume(deps: Deps, { project, wallet, sandbox, name }: Unpaid): Promise<void> {
  if (sandbox !== null && (await findStatus(deps, sandbox)) === 'paused') await deps.controlPlane.resumeSandbox(sandbox)
  await deps.db.transaction().execute(async (tx) => {
    const balance = (await lockWallet(tx, wallet)) ?? 0n
    await tx.updateTable('gateway.sandboxes').set({ is_paused: false }).where('name', '=', name).execute()
    if (balance <= 0n) return
    await tx
      .updateTable('gateway.projects')
      .set({ status: 'active', paused_at: null, metered_until: deps.now() })
      .where('id', '=', project)
      .where('status', '=', 'pending')
      .where('paused_at', 'is not', null)
      .execute()
  })
}

/** Undefined when the sandbox does not exist any more. */
async function findStatus({ controlPlane }: Deps, sandbox: string): Promise<SandboxStatus | undefined> {
  try {
    return (await controlPlane.getSandbox(sandbox)).status
  } catch (error) {
    if (error instanceof ControlPlaneError && error.status === 404) return undefined
    throw error
  }
}

async function deleteUnpaid(deps: Deps): Promise<void> {
  const since = new Date(deps.now().getTime() - deps.config.unpaidHours * 3_600_000)
  const rows = await deps.db
    .selectFrom('gateway.projects as p')
    .innerJoin('gateway.wallets as w', 'w.address', 'p.wallet')
    .select(['p.id', 'p.wallet'])
    .where('p.paused_at', '<', since)
    .where('p.status', '=', 'pending')
    .where('p.deleted_at', 'is', null)
    .where('w.unpaid_since', '<', since)
    .where('w.balance_micro', '<=', 0n as never)
    .execute()
  for (const { id, wallet } of rows) {
    const isDeleted = await deps.db.transaction().execute(async (tx) => {
      // A payment may have arrived since the rows were read.
      if (((await lockWallet(tx, wallet)) ?? 0n) > 0n) return false
      await deleteProjectRow(tx, id, 'the wallet has had no credit for too long')
      return true
    })
    if (isDeleted) deps.log.info({ project: id, wallet }, 'deleted a project that was not paid for too long')
  }
}
