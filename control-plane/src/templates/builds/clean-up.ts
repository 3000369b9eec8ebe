/**
 * Removes from hosts what no template needs any more:
 *
 *   a build that failed without its host       → cancelled; then its memory and address are released
 *   a deleted template                         → its build, log and image are deleted, and a running build is cancelled.
 *                                                Not while another template is built on it, or a sandbox is being made
 *   a build or image that no row accounts for  → deleted
 *
 * Of an image, the host keeps the files that sandboxes use for as long as they exist.
 */
import { crashPoint } from '@warren/kit/crash-point'
import { isTemplateImage, templateImageName } from '@warren/protocol'
import { sql } from 'kysely'
import type { TemplateRow } from '../../db/schema.ts'
import type { Deps } from '../../deps.ts'
import { hostAddresses } from '../../hosts/heartbeat.ts'
import { HostError } from '../../hosts/host-error.ts'
import type { Sweep } from '../../jobs/sweep.ts'
import { releaseBuild } from './reserve.ts'

export const cleanUpBuilds: Sweep = {
  name: 'clean-up-builds',
  everyMs: 500,
  async run(deps) {
    const [deleted, abandoned] = await Promise.all([listDeleted(deps), listAbandoned(deps)])
    await Promise.all([
      ...deleted.map((row) => attempt(deps, row, () => removeFromHost(deps, row))),
      ...abandoned.map((row) => attempt(deps, row, () => cancelOnHost(deps, row))),
    ])
  },
}

type Cleaned = Pick<TemplateRow, 'id' | 'host_id' | 'attempt' | 'failure_reason'>
const CLEANED = ['id', 'host_id', 'attempt', 'failure_reason'] as const

const listDeleted = (deps: Deps): Promise<Cleaned[]> =>
  deps.db
    .selectFrom('templates')
    .select(CLEANED)
    .where('deleted_at', 'is not', null)
    .where('host_id', 'is not', null)
    .where(sql<boolean>`not exists (select from templates child where child.deleted_at is null
      and child.status in ('pending', 'building') and child.image = replace(templates.id, 'tpl_', 'tpl:'))`)
    .where(sql<boolean>`not exists (select from sandboxes where sandboxes.template_id = templates.id
      and sandboxes.status = 'creating')`)
    .execute()

const listAbandoned = (deps: Deps): Promise<Cleaned[]> =>
  deps.db
    .selectFrom('templates')
    .select(CLEANED)
    .where('deleted_at', 'is', null)
    .where('status', '=', 'failed')
    .where('reserved_mib', '>', 0)
    .execute()

async function attempt(deps: Deps, row: Cleaned, work: () => Promise<void>): Promise<void> {
  try {
    await work()
  } catch (error) {
    const silent = error instanceof HostError && error.code === 'unreachable'
    deps.log[silent ? 'debug' : 'warn']({ err: error, template: row.id }, 'failed to clean up a build, retrying')
  }
}

/** The build is cancelled first, so that a reader of its log gets the reason before the log is deleted. */
async function removeFromHost(deps: Deps, row: Cleaned): Promise<void> {
  await cancel(deps, row, 'the template was deleted')
  await (await deps.hosts.get(row.host_id)).deleteBuild(row.id)
  await crashPoint('build.deleted')
  await deps.db.transaction().execute(async (tx) => {
    await releaseBuild(tx, row.id)
    await tx.updateTable('templates').set({ host_id: null }).where('id', '=', row.id).execute()
  })
}

async function cancelOnHost(deps: Deps, row: Cleaned): Promise<void> {
  await cancel(deps, row, row.failure_reason ?? 'the build was cancelled')
  await crashPoint('build.cancelled')
  await deps.db.transaction().execute((tx) => releaseBuild(tx, row.id))
}

async function cancel(deps: Deps, { id, host_id, attempt }: Cleaned, reason: string): Promise<void> {
  if (attempt === 0) return // Never started.
  try {
    await (await deps.hosts.get(host_id)).cancelBuild(id, { attempt, reason })
  } catch (error) {
    if (!(error instanceof HostError && error.code === 'not_found')) throw error
  }
}

/** A host's state is older than the rows that are read after it, and a row is older than its build. */
export const deleteOrphanedBuilds: Sweep = {
  name: 'delete-orphaned-builds',
  everyMs: 5_000,
  async run(deps) {
    await Promise.all(hostAddresses(deps).map((address) => deleteOrphans(deps, address)))
  },
}

async function deleteOrphans(deps: Deps, address: string): Promise<void> {
  const host = deps.hosts.clientAt(address)
  const state = await host.getState().catch(() => undefined) // Logged by hosts/heartbeat.ts.
  if (!state) return
  const images = state.images.filter(({ name }) => isTemplateImage(name)).map(({ name }) => name.replace(':', '_'))
  const ids = [...new Set([...state.builds.map(({ id }) => id), ...images])]
  if (ids.length === 0) return
  const rows = await deps.db
    .selectFrom('templates')
    .select('id')
    .where('id', 'in', ids)
    // A deleted template that has not left its host yet is removed by the other sweep.
    .where((eb) => eb.or([eb('deleted_at', 'is', null), eb('host_id', 'is not', null)]))
    .execute()
  const known = new Set(rows.map(({ id }) => id))
  for (const id of ids.filter((one) => !known.has(one))) {
    try {
      await host.deleteBuild(id)
      deps.log.warn({ template: id, image: templateImageName(id) }, 'deleted an orphaned build')
    } catch (error) {
      deps.log.warn({ err: error, template: id }, 'failed to delete an orphaned build, retrying')
    }
  }
}
