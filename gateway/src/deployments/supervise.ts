/**
 * Keeps served apps running. Each is watched by one process: the one whose lease on its deployment holds. It writes the output
 * of the app into the log; when the app exits it is started again, later each time while it does not stay up. A sandbox that
 * stopped is resumed, and one that no longer exists is made again from the stored result.
 */
import { setTimeout as delay } from 'node:timers/promises'
import { sql } from 'kysely'
import { isTransient } from '../control-plane/client.ts'
import { ControlPlaneError } from '../control-plane/error.ts'
import type { DeploymentRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { type Release, readRelease, releaseApp, startApp } from './release.ts'
import { describeExit, followProcess } from './run-process.ts'
import type { WorkSandbox } from './sandboxes.ts'
import { ClaimLost, openWork, type Work } from './work.ts'

const CLAIM_EVERY_MS = 1_000
const BACKOFF_MIN_MS = 1_000
const BACKOFF_MAX_MS = 60_000
/** An app that ran this long starts again without delay. */
const STABLE_MS = 60_000

export class Supervisor {
  readonly #deps: Deps
  readonly #watched = new Map<string, { controller: AbortController; done: Promise<void> }>()
  #timer: NodeJS.Timeout | undefined
  #claiming: Promise<void> = Promise.resolve()

  constructor(deps: Deps) {
    this.#deps = deps
  }

  start(): void {
    this.#timer = setTimeout(() => {
      this.#claiming = this.#claim()
        .catch((error) => this.#deps.log.warn({ err: error }, 'failed to look for apps to supervise'))
        .finally(() => this.#timer && this.start())
    }, CLAIM_EVERY_MS)
  }

  async stop(): Promise<void> {
    clearTimeout(this.#timer)
    this.#timer = undefined
    await this.#claiming
    const watched = [...this.#watched.values()]
    for (const { controller } of watched) controller.abort(new ClaimLost('the gateway stops'))
    await Promise.all(watched.map(({ done }) => done))
    await this.#deps.db
      .updateTable('gateway.deployments')
      .set({ claimed_by: null, claimed_until: null })
      .where('claimed_by', '=', this.#deps.processId)
      .where('status', '=', 'active')
      .execute()
  }

  /** Renews the leases of this process, takes those that have expired, and ends the watch of apps that are not served now. */
  async #claim(): Promise<void> {
    const { rows } = await sql<{ id: string }>`
      update gateway.deployments d
      set claimed_by = ${this.#deps.processId}, claimed_until = now() + make_interval(secs => ${this.#deps.config.leaseSeconds})
      from gateway.projects p
      where p.live_deployment_id = d.id and p.status = 'active' and p.deleted_at is null and d.status = 'active'
        and (d.claimed_until is null or d.claimed_until < now() or d.claimed_by = ${this.#deps.processId})
      returning d.id`.execute(this.#deps.db)
    const ids = new Set(rows.map((row) => row.id))
    for (const [id, { controller }] of this.#watched) if (!ids.has(id)) controller.abort(new ClaimLost('not served'))
    for (const id of ids) if (!this.#watched.has(id)) this.#watch(id)
  }

  #watch(id: string): void {
    const controller = new AbortController()
    const done = watchApp(this.#deps, id, controller.signal)
      .catch((error) => {
        if (!controller.signal.aborted)
          this.#deps.log.warn({ err: error, deployment: id }, 'failed to supervise an app')
      })
      .finally(() => this.#watched.delete(id))
    this.#watched.set(id, { controller, done })
  }
}

async function watchApp(deps: Deps, deploymentId: string, signal: AbortSignal): Promise<void> {
  const deployment = await deps.db
    .selectFrom('gateway.deployments')
    .selectAll()
    .where('id', '=', deploymentId)
    .executeTakeFirstOrThrow()
  const release = readRelease(deployment)
  if (!release) return
  const work = await openWork(deps, deployment, signal)
  let backoffMs = BACKOFF_MIN_MS
  try {
    while (!signal.aborted) {
      const startedAt = Date.now()
      const what = await watchOnce(work)
      signal.throwIfAborted()
      if (Date.now() - startedAt > STABLE_MS) backoffMs = BACKOFF_MIN_MS
      work.log.note(`${what}; starting it again in ${backoffMs / 1000} s`)
      await delay(backoffMs, undefined, { signal })
      backoffMs = Math.min(backoffMs * 2, BACKOFF_MAX_MS)
      await bringBack(work, release)
    }
  } finally {
    await work.log.flush()
  }
}

/** Returns, with what happened, when the app has to be started again. */
async function watchOnce({ deps, deployment, log, signal }: Work): Promise<string> {
  const row = await findRunSandbox(deps, deployment)
  if (!row?.sandbox_id || !row.process_id) return 'the app has no sandbox'
  const followed = {
    sandboxId: row.sandbox_id,
    processId: row.process_id,
    source: 'app',
    after: Number(row.output_seq),
    sandboxName: row.name,
  } as const
  try {
    return `the app ${describeExit(await followProcess(deps, log, followed, signal))}`
  } catch (error) {
    if (error instanceof ControlPlaneError && !isTransient(error)) return `the app was lost (${error.message})`
    throw error
  }
}

/** Whatever is missing: the program, the running VM, or the sandbox. A failure is tried again after the next delay. */
async function bringBack(work: Work, release: Release): Promise<void> {
  const { deps, deployment, log, signal } = work
  try {
    const row = await findRunSandbox(deps, deployment)
    const sandbox: WorkSandbox | undefined = row?.sandbox_id ? { name: row.name, id: row.sandbox_id } : undefined
    if (!sandbox || !(await makeRun(deps, sandbox.id))) return await replace(work, release)
    await startApp(work, sandbox, release)
  } catch (error) {
    signal.throwIfAborted()
    log.note(`starting the app failed: ${(error as Error).message}`)
    deps.log.warn({ err: error, deployment: deployment.id }, 'failed to start an app again')
  }
}

/** False when the sandbox does not exist any more. */
async function makeRun({ controlPlane }: Deps, id: string): Promise<boolean> {
  try {
    const { status } = await controlPlane.getSandbox(id)
    if (status === 'destroyed' || status === 'failed' || status === 'destroying') return false
    if (status === 'paused' || status === 'error') await controlPlane.resumeSandbox(id)
    return true
  } catch (error) {
    if (error instanceof ControlPlaneError && error.status === 404) return false
    throw error
  }
}

/** A new attempt, so that the sweep destroys the sandbox of the old one. */
async function replace(work: Work, release: Release): Promise<void> {
  const { deps, deployment } = work
  work.log.note('the sandbox of the app is gone; it is made again')
  const { rows } = await sql<DeploymentRow>`update gateway.deployments set attempt = attempt + 1
    where id = ${deployment.id} and claimed_by = ${deps.processId} and status = 'active' returning *`.execute(deps.db)
  if (!rows[0]) throw new ClaimLost('another process supervises this app')
  deployment.attempt = rows[0].attempt
  await releaseApp(work, release)
}

export function findRunSandbox({ db }: Deps, { id, attempt }: Pick<DeploymentRow, 'id' | 'attempt'>) {
  return db
    .selectFrom('gateway.sandboxes')
    .selectAll()
    .where('deployment_id', '=', id)
    .where('role', '=', 'run')
    .where('attempt', '=', attempt)
    .executeTakeFirst()
}
