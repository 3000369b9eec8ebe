/**
 * Runs the builds of templates. A sweep compares each template that is `building` with what its host reports, and takes
 * the next step:
 *
 *   the host does not know this attempt    → it is started there
 *   it runs                                → nothing, unless the host exceeds its time limit by far
 *   it is done                             → the template is ready
 *   it failed                              → the template has failed, or is tried again if it was interrupted
 *   the host does not answer               → nothing, until the time limit
 *
 * Nothing is remembered between two runs of the sweep. A process that is killed between two steps has therefore lost
 * nothing: any process takes the next step, and hosts do nothing twice for one attempt
 * (docs/decisions/0045-builds-are-run-by-a-sweep.md).
 */
import { crashPoint } from '@warren/kit/crash-point'
import { Failure } from '@warren/kit/failure'
import type { HostBuild } from '@warren/protocol'
import type { TemplateRow } from '../../db/schema.ts'
import type { Deps } from '../../deps.ts'
import type { HostClient } from '../../hosts/client.ts'
import { HostError, type HostErrorCode, statusReason } from '../../hosts/host-error.ts'
import type { Sweep } from '../../jobs/sweep.ts'
import { createBuildBody } from './body.ts'
import { claimBuilds } from './claim.ts'
import { endFailed, endReady, mayRetry, retry } from './end.ts'

/** A rebuild from cache takes a second, so waiting for the sweep must not take a noticeable part of it. */
const EVERY_MS = 250
/** For packing the result and booting its bases, which under emulation takes minutes, and for a host that was restarted. */
const GRACE_MS = 60 * 60_000

export const runBuilds: Sweep = {
  name: 'run-builds',
  everyMs: EVERY_MS,
  async run(deps) {
    const unfinished = await countUnfinished(deps)
    if (unfinished.pending > 0) {
      await claimBuilds(deps)
      await crashPoint('build.claimed')
    }
    if (unfinished.pending + unfinished.building === 0) return
    const rows = await deps.db
      .selectFrom('templates')
      .selectAll()
      .where('status', '=', 'building')
      .where('deleted_at', 'is', null)
      .execute()
    await Promise.all(rows.map((row) => advance(deps, row)))
  },
}

async function countUnfinished(deps: Deps): Promise<{ pending: number; building: number }> {
  const rows = await deps.db
    .selectFrom('templates')
    .select((eb) => ['status', eb.fn.countAll<number>().as('n')])
    .where('status', 'in', ['pending', 'building'])
    .where('deleted_at', 'is', null)
    .groupBy('status')
    .execute()
  const counts = { pending: 0, building: 0, ...Object.fromEntries(rows.map(({ status, n }) => [status, n])) }
  deps.metrics.templatesUnfinished.set({ status: 'pending' }, counts.pending)
  deps.metrics.templatesUnfinished.set({ status: 'building' }, counts.building)
  return counts
}

/** One build that cannot be advanced must not stop the others. */
async function advance(deps: Deps, row: TemplateRow): Promise<void> {
  try {
    const host = await deps.hosts.get(row.host_id)
    const build = await findBuild(host, row.id)
    if (!build || build.attempt < row.attempt) return await start(deps, host, row)
    if (build.state === 'running') return await checkTime(deps, row, 'the host did not finish the build in time')
    await crashPoint('build.ended')
    await end(deps, row, build)
    await crashPoint('build.recorded')
  } catch (error) {
    if (error instanceof HostError) return handleHostError(deps, row, error)
    deps.log.warn({ err: error, template: row.id }, 'failed to advance a build, retrying')
  }
}

async function findBuild(host: HostClient, id: string): Promise<HostBuild | undefined> {
  try {
    return await host.getBuild(id)
  } catch (error) {
    if (error instanceof HostError && error.code === 'not_found') return undefined
    throw error
  }
}

async function start(deps: Deps, host: HostClient, row: TemplateRow): Promise<void> {
  try {
    await host.startBuild(row.id, await createBuildBody(deps, row))
  } catch (error) {
    // The rules have become stricter since it was accepted.
    if (!(error instanceof Failure)) throw error
    return endFailed(deps, row, { code: 'refused', reason: error.message, endedOnHost: true }, {})
  }
  await crashPoint('build.started')
}

async function end(deps: Deps, row: TemplateRow, build: HostBuild): Promise<void> {
  const { steps_cached, steps_run, image } = build
  const steps = { steps_cached, steps_run }
  if (build.state === 'done' && image) return endReady(deps, row, image, steps)
  const { code, reason } = build.failure ?? { code: 'internal', reason: 'the host failed' }
  const failure = { code, reason, endedOnHost: true }
  return mayRetry(row, failure) ? retry(deps, row, failure, steps) : endFailed(deps, row, failure, steps)
}

/** An attempt that is still ending (`wrong_state`), a full disk and a host that is away are worth waiting for. */
const PASSING: ReadonlySet<HostErrorCode> = new Set(['unreachable', 'wrong_state', 'disk_full'])

async function handleHostError(deps: Deps, row: TemplateRow, error: HostError): Promise<void> {
  const reason = statusReason(error)
  if (PASSING.has(error.code)) return checkTime(deps, row, reason)
  deps.log.warn({ err: error, template: row.id }, 'host refused a build')
  await endFailed(deps, row, { code: error.code, reason, endedOnHost: false }, {})
}

async function checkTime(deps: Deps, row: TemplateRow, reason: string): Promise<void> {
  const startedAt = row.attempt_started_at ?? row.created_at
  const limitMs = deps.config.buildLimitSeconds * 1000 + GRACE_MS
  if (deps.now().getTime() - startedAt.getTime() <= limitMs) return
  await endFailed(deps, row, { code: 'timeout', reason, endedOnHost: false }, {})
}
