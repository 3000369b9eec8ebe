/**
 * Destroys sandboxes that are not needed, and finishes deletions. A sandbox is needed
 *
 *   to build   while its deployment is pending or building, in the same attempt
 *   to run     while its deployment starts, in the same attempt; while its deployment is served; while it is drained
 *
 * and never when its project is being deleted. That follows from the rows alone, so nothing has to be remembered by the code
 * that cancels, fails, replaces or deletes.
 */
import { sql } from 'kysely'
import type { SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import type { Sweep } from '../sweep.ts'
import { deleteUpload } from '../uploads/store.ts'
import { deleteArtifact } from './artifacts.ts'
import { NAME_PREFIX } from './sandboxes.ts'

/** A create that was not answered within this time was never received. */
const CREATE_AGE_S = 180
/** Sandboxes without a row are destroyed when they are older. */
const ORPHAN_AGE_MS = 300_000

export const sweepSandboxes: Sweep = {
  name: 'sweep-sandboxes',
  everyMs: 2_000,
  async run(deps) {
    const { rows } = await sql<SandboxRow & { is_old: boolean }>`
      select s.*, s.created_at < now() - make_interval(secs => ${CREATE_AGE_S}) as is_old
      from gateway.sandboxes s
      join gateway.deployments d on d.id = s.deployment_id
      join gateway.projects p on p.id = s.project_id
      where p.status = 'deleting' or p.deleted_at is not null or not (
        (s.role = 'build' and s.attempt = d.attempt and d.status in ('pending', 'building'))
        or (s.role = 'run' and s.attempt = d.attempt and d.status in ('deploying', 'promoting'))
        or (s.role = 'run' and s.attempt = d.attempt and p.live_deployment_id is not distinct from d.id)
        or coalesce(s.drain_until > now(), false))`.execute(deps.db)
    const destroyed = rows.map((row) =>
      destroy(deps, row).catch((error) =>
        deps.log.warn({ err: error, sandbox: row.name }, 'failed to destroy a sandbox, it will be tried again'),
      ),
    )
    await Promise.all(destroyed)
    await finishDeletions(deps)
  },
}

async function destroy(deps: Deps, row: SandboxRow & { is_old: boolean }): Promise<void> {
  const id = row.sandbox_id ?? (await deps.controlPlane.listSandboxes()).find((one) => one.name === row.name)?.id
  // Its create may still be on its way.
  if (id === undefined && !row.is_old) return
  if (id !== undefined) await deps.controlPlane.destroySandbox(id)
  await deps.db.deleteFrom('gateway.sandboxes').where('name', '=', row.name).execute()
}

/** When the last sandbox is gone. */
async function finishDeletions(deps: Deps): Promise<void> {
  const { rows } = await sql<{ id: string }>`select id from gateway.projects p
    where p.status = 'deleting' and p.deleted_at is null
      and not exists (select from gateway.sandboxes s where s.project_id = p.id)`.execute(deps.db)
  for (const { id } of rows) await forgetProject(deps, id)
}

/** What only the owner could see is deleted first, then the name becomes free: a deletion that is interrupted is repeated. */
async function forgetProject(deps: Deps, id: string): Promise<void> {
  const deployments = await deps.db
    .selectFrom('gateway.deployments')
    .select(['id', 'upload_digest'])
    .where('project_id', '=', id)
    .execute()
  for (const deployment of deployments) {
    await deleteArtifact(deps, deployment.id)
    await deleteUpload(deps, deployment.upload_digest)
  }
  await deps.db.transaction().execute(async (tx) => {
    await tx.updateTable('gateway.deployments').set({ secrets: null }).where('project_id', '=', id).execute()
    await sql`delete from gateway.log_lines l using gateway.deployments d
      where d.id = l.deployment_id and d.project_id = ${id}`.execute(tx)
    await tx
      .updateTable('gateway.projects')
      .set({ deleted_at: deps.now(), live_deployment_id: null })
      .where('id', '=', id)
      .execute()
  })
}

/** For what no row names: a database that was restored, a row that was lost. */
export const sweepOrphans: Sweep = {
  name: 'sweep-orphaned-sandboxes',
  everyMs: 600_000,
  atStart: true,
  async run(deps) {
    const existing = (await deps.controlPlane.listSandboxes()).filter(({ name }) => name.startsWith(NAME_PREFIX))
    if (existing.length === 0) return
    const known = await deps.db.selectFrom('gateway.sandboxes').select('name').execute()
    const names = new Set(known.map(({ name }) => name))
    const oldest = Date.now() - ORPHAN_AGE_MS
    for (const sandbox of existing) {
      if (names.has(sandbox.name) || Date.parse(sandbox.created_at) > oldest) continue
      deps.log.warn({ sandbox: sandbox.id, name: sandbox.name }, 'destroying a sandbox that belongs to no deployment')
      await deps.controlPlane.destroySandbox(sandbox.id)
    }
  },
}
