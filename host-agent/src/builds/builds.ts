/**
 * The builds of templates on this host (protocol/src/host-builds.ts). A build is started when the control plane says so; how
 * many run at once is its decision.
 *
 * The record is written when an attempt starts and when it ends. An attempt that was running when the host agent was killed is
 * found as such by the next one, which reports it as failed; its VM, if it still runs, is a stray (vms/adopt.ts).
 */
import path from 'node:path'
import { errorText } from '@warren/kit/error-text'
import {
  HOST_BUILD_REASON_MAX_LENGTH,
  type HostBuild,
  type HostBuildBody,
  type HostBuildCancelBody,
  type HostBuildFailure,
  type HostBuildLog,
  type HostBuildLogQuery,
  TemplateId,
  templateImageName,
} from '@warren/protocol'
import { Value } from 'typebox/value'
import { readBase } from '../bases/base.ts'
import { ensureBase, listBuilds } from '../bases/ensure.ts'
import { removeTemplateBases } from '../bases/remove-template-bases.ts'
import type { Deps } from '../deps.ts'
import { HostError } from '../host-error.ts'
import type { VmRecord } from '../vms/record.ts'
import { openStepCache, type StepCache } from './cache.ts'
import { BuildFailure } from './failure.ts'
import { BuildLog } from './log.ts'
import { type BuildRegistry, openBuildRegistry } from './registry.ts'
import { runAttempt } from './run.ts'

/** After the end of an attempt. */
const LOG_RETENTION_MS = 7 * 24 * 3600 * 1000
const PRUNE_INTERVAL_MS = 3600 * 1000

type Entry = {
  build: HostBuild
  log: BuildLog
  /** Of the running attempt. */
  running?: { cancel: AbortController; ended: Promise<void> }
}

export class Builds {
  readonly #deps: Deps
  readonly #registry: BuildRegistry
  readonly #cache: StepCache
  readonly #entries = new Map<string, Entry>()
  /** Starts and deletes of one build happen one after the other. */
  readonly #turns = new Map<string, Promise<unknown>>()
  readonly #listVms: () => readonly VmRecord[]
  #stopped = false

  private constructor(deps: Deps, registry: BuildRegistry, cache: StepCache, listVms: () => readonly VmRecord[]) {
    this.#deps = deps
    this.#registry = registry
    this.#cache = cache
    this.#listVms = listVms
  }

  /** Call it before the VMs are adopted: the cache refers to objects that would be removed otherwise. */
  static async open(deps: Deps, listVms: () => readonly VmRecord[]): Promise<Builds> {
    const root = path.join(deps.config.dataDir, 'builds')
    const registry = openBuildRegistry(root, deps.log)
    const maxBytes = deps.config.buildCacheMib * 1024 ** 2
    const cache = await openStepCache(path.join(deps.config.dataDir, 'build-cache'), deps.snapshots, maxBytes)
    deps.volume.leaveOut(() => cache.totalBytes())
    const builds = new Builds(deps, registry, cache, listVms)
    for (const build of await registry.list()) await builds.#recover(build)
    return builds
  }

  /** Call it when the bases that are not needed any more were removed. */
  async start(): Promise<void> {
    await this.#prune()
    const timer = setInterval(() => void this.#prune(), PRUNE_INTERVAL_MS).unref()
    this.#deps.stopping.addEventListener('abort', () => clearInterval(timer))
  }

  list(): HostBuild[] {
    return [...this.#entries.values()].map(({ build }) => build)
  }

  run(id: string, body: HostBuildBody): Promise<HostBuild> {
    if (!Value.Check(TemplateId, id)) throw new HostError('invalid', `${id} is not the id of a template`)
    return this.#inTurn(id, async () => {
      const known = this.#entries.get(id)
      const last = known?.build.attempt ?? 0
      if (body.attempt < last) throw new HostError('fence_lost', `attempt ${last} of ${id} was started`)
      if (known && body.attempt === last) return known.build
      if (known?.running) throw new HostError('wrong_state', `attempt ${last} of ${id} is running`)
      this.#deps.volume.checkFloor('a build')
      if (this.#stopped) throw new HostError('internal', 'the host agent is stopping')
      const build: HostBuild = {
        ...{ id, attempt: body.attempt, state: 'running', phase: 'starting' },
        ...{ steps: body.steps.length, steps_cached: 0, steps_run: 0, started_at: new Date().toISOString() },
      }
      await this.#registry.write(build)
      const log = known?.log ?? (await BuildLog.open(this.#registry.logFileOf(id)))
      log.beginAttempt(body.attempt, body.limits.log_bytes)
      const cancel = new AbortController()
      const entry: Entry = { build, log }
      entry.running = { cancel, ended: this.#runAttempt(entry, body, cancel.signal) }
      this.#entries.set(id, entry)
      return build
    })
  }

  get(id: string): HostBuild {
    return this.#get(id).build
  }

  readLog(id: string, { after, wait_ms = 0 }: HostBuildLogQuery): Promise<HostBuildLog> {
    const { log } = this.#get(id)
    return log.read(after, wait_ms, () => this.#entries.get(id)?.running === undefined)
  }

  async cancel(id: string, { attempt, reason }: HostBuildCancelBody): Promise<HostBuild> {
    const { build } = this.#get(id)
    if (attempt < build.attempt) throw new HostError('fence_lost', `attempt ${build.attempt} of ${id} was started`)
    await this.#cancel(id, reason)
    return this.#get(id).build
  }

  delete(id: string): Promise<void> {
    return this.#inTurn(id, async () => {
      if (!Value.Check(TemplateId, id)) return
      await this.#cancel(id, 'the template was deleted')
      // Also of a build that is not listed, because its record cannot be read.
      await this.#removeImage(id)
      const entry = this.#entries.get(id)
      this.#entries.delete(id)
      await entry?.log.close()
      await this.#registry.delete(id)
    })
  }

  /** Ends what is running, when the host agent stops. */
  async stop(): Promise<void> {
    this.#stopped = true
    const ends = [...this.#entries.values()].flatMap(({ running }) => {
      running?.cancel.abort(new BuildFailure('interrupted', 'the host agent stopped'))
      return running?.ended ?? []
    })
    await Promise.allSettled(ends)
  }

  async #cancel(id: string, reason: string): Promise<void> {
    const running = this.#entries.get(id)?.running
    running?.cancel.abort(new BuildFailure('cancelled', reason))
    await running?.ended
  }

  async #runAttempt(entry: Entry, body: HostBuildBody, signal: AbortSignal): Promise<void> {
    const { build, log } = entry
    const startedAt = performance.now()
    const setPhase = (phase: HostBuild['phase']) => {
      build.phase = phase
    }
    let end: Pick<HostBuild, 'state' | 'image' | 'failure'>
    try {
      const work = () => runAttempt(this.#deps, this.#cache, { build, log, body, setPhase }, signal)
      end = { state: 'done', image: await this.#deps.activity.run(work) }
      signal.throwIfAborted()
    } catch (error) {
      end = { state: 'failed', failure: this.#explain(build, error, signal) }
      log.writeLastLine(`ERROR: ${end.failure!.reason}`)
      await this.#removeImage(build.id)
    }
    log.flush()
    await log.settled()
    const { phase: _, ...ended } = { ...build, ...end, ended_at: new Date().toISOString() }
    await this.#registry
      .write(ended)
      .catch((error) => this.#deps.log.error({ err: error, build: build.id }, 'failed to write the record of a build'))
    // Together: who sees that this attempt has ended can start the next one.
    delete build.phase
    Object.assign(build, ended)
    delete entry.running
    log.notify()
    const outcome = end.failure?.code ?? 'done'
    this.#deps.metrics.builds.observe({ outcome }, (performance.now() - startedAt) / 1000)
    this.#deps.metrics.buildSteps.increase({ how: 'cached' }, build.steps_cached)
    this.#deps.metrics.buildSteps.increase({ how: 'run' }, build.steps_run)
    await this.#prune()
  }

  #explain({ id }: HostBuild, error: unknown, signal: AbortSignal): { code: HostBuildFailure; reason: string } {
    const cause = signal.aborted ? signal.reason : error
    const code = cause instanceof BuildFailure ? cause.code : 'internal'
    if (code === 'internal' || code === 'vm_died') this.#deps.log.warn({ err: cause, build: id }, 'a build failed')
    const reason = errorText(cause).replace(/\s+/g, ' ').trim().slice(0, HOST_BUILD_REASON_MAX_LENGTH)
    return { code, reason }
  }

  /** The name of the image, and bases of it that no sandbox needs. */
  async #removeImage(id: string): Promise<void> {
    const name = templateImageName(id)
    try {
      const image = await this.#deps.templateImages.find(name)
      await this.#deps.templateImages.remove(name)
      await removeTemplateBases(this.#deps, this.#listVms)
      if (image) void this.#removeBasesBeingBuilt(image.digest)
    } catch (error) {
      this.#deps.log.error({ err: error, image: name }, 'failed to remove the image of a build')
    }
  }

  /** A base is built to its end although the build that wanted it was cancelled. */
  async #removeBasesBeingBuilt(digest: string): Promise<void> {
    const wanted = listBuilds().flatMap((one) => (one.wanted.image.digest === digest ? one.wanted : []))
    if (wanted.length === 0) return
    await Promise.allSettled(wanted.map((one) => ensureBase(this.#deps, one.image, one.shape, one.diskMib)))
    await this.#prune()
  }

  /** Of an earlier host agent. */
  async #recover(build: HostBuild): Promise<void> {
    const log = await BuildLog.open(this.#registry.logFileOf(build.id))
    this.#entries.set(build.id, { build, log })
    if (build.state !== 'running') return
    const reason = 'the host agent restarted'
    log.beginAttempt(build.attempt, 0)
    log.writeLastLine(`ERROR: ${reason}`)
    await log.settled()
    // The image may have been published a moment before.
    await this.#deps.templateImages.remove(templateImageName(build.id))
    delete build.phase
    const failure = { code: 'interrupted' as const, reason }
    Object.assign(build, { state: 'failed', failure, ended_at: new Date().toISOString() })
    await this.#registry.write(build)
  }

  async #prune(): Promise<void> {
    try {
      const now = Date.now()
      await removeTemplateBases(this.#deps, this.#listVms)
      await this.#cache.forgetBases(async ({ key, id }) => (await readBase(this.#deps, key))?.id === id)
      const removed = await this.#cache.prune(now)
      if (removed.removed > 0) this.#deps.log.info(removed, 'removed build steps from the cache')
      for (const { build, log } of this.#entries.values()) {
        if (build.ended_at && now - Date.parse(build.ended_at) > LOG_RETENTION_MS) await log.clear() // Safe to repeat.
      }
    } catch (error) {
      this.#deps.log.warn({ err: error }, 'failed to prune the build cache')
    }
  }

  #get(id: string): Entry {
    const entry = this.#entries.get(id)
    if (!entry) throw new HostError('not_found', `there is no build ${id} on this host`)
    return entry
  }

  async #inTurn<T>(id: string, work: () => Promise<T>): Promise<T> {
    const before = this.#turns.get(id) ?? Promise.resolve()
    const mine = before.catch(() => {}).then(work)
    this.#turns.set(id, mine)
    try {
      return await mine
    } finally {
      if (this.#turns.get(id) === mine) this.#turns.delete(id)
    }
  }
}
