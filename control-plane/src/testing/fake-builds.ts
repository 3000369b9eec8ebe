/**
 * The builds of the fake host. Attempts, states, the log and the step cache behave as on a real host; the steps are not
 * run. Of a shell command the fake understands `echo TEXT`, `exit CODE` and `sleep`, which never ends, separated by `;`.
 *
 * Hooks are awaited as those of VMs (fake-vms.ts).
 */
import { keysOfSteps, type RunStep, type WorkdirStep } from '@warren/dockerfile'
import {
  type HostBuild,
  type HostBuildBody,
  type HostBuildCancelBody,
  type HostBuildFailure,
  type HostBuildLog,
  type HostBuildLogLine,
  type HostBuildLogQuery,
  type HostBuildStep,
  type HostImage,
  TemplateId,
  templateImageName,
} from '@warren/protocol'
import { Value } from 'typebox/value'
import { FakeHostFailure } from './fake-vm.ts'

/** Of one response. */
const LOG_LINES_MAX = 1_000
const RESULT = { size_bytes: 150_000_000, min_disk_mib: 256 }

export type BuildHooks = {
  beforeBuild?: (id: string, body: HostBuildBody) => Promise<void> | void
  beforeBuildStep?: (id: string, step: HostBuildStep) => Promise<void> | void
  beforeBuildPacking?: (id: string) => Promise<void> | void
  /** The image exists; the build is not done yet. */
  beforeBuildDone?: (id: string) => Promise<void> | void
}

type FakeBuild = {
  view: HostBuild
  lines: HostBuildLogLine[]
  logBytes: number
  cancelled: AbortController
  /** Settles when the attempt has ended. */
  ended: Promise<void>
  waiting: Set<() => void>
}

class BuildFailure extends Error {
  readonly code: HostBuildFailure
  constructor(code: HostBuildFailure, message: string) {
    super(message)
    this.code = code
  }
}

export class FakeBuilds {
  readonly builds = new Map<string, FakeBuild>()
  readonly #cache = new Map<string, Set<string>>()
  readonly #images: () => HostImage[]
  readonly #hooks: () => BuildHooks

  constructor(images: () => HostImage[], hooks: () => BuildHooks) {
    this.#images = images
    this.#hooks = hooks
  }

  list(): HostBuild[] {
    return [...this.builds.values()].map(({ view }) => view)
  }

  async start(id: string, body: HostBuildBody): Promise<HostBuild> {
    if (!Value.Check(TemplateId, id)) throw new FakeHostFailure('invalid', `${id} is not the id of a template`)
    await this.#hooks().beforeBuild?.(id, body)
    const known = this.builds.get(id)
    if (known && body.attempt < known.view.attempt) {
      throw new FakeHostFailure('fence_lost', `attempt ${known.view.attempt} was started`)
    }
    if (known?.view.attempt === body.attempt) return known.view
    if (known?.view.state === 'running') throw new FakeHostFailure('wrong_state', `attempt ${known.view.attempt} runs`)
    const build: FakeBuild = {
      view: {
        ...{ id, attempt: body.attempt, state: 'running', phase: 'starting', steps: body.steps.length },
        ...{ steps_cached: 0, steps_run: 0, started_at: new Date().toISOString() },
      },
      lines: known?.lines ?? [],
      logBytes: 0,
      cancelled: new AbortController(),
      ended: Promise.resolve(),
      waiting: known?.waiting ?? new Set(),
    }
    this.builds.set(id, build)
    build.ended = this.#run(build, body)
    return build.view
  }

  get(id: string): HostBuild {
    return this.#get(id).view
  }

  async readLog(id: string, { after, wait_ms = 0 }: HostBuildLogQuery): Promise<HostBuildLog> {
    const read = () => {
      const build = this.builds.get(id)
      const lines = build?.lines.slice(after, after + LOG_LINES_MAX) ?? []
      const reachesEnd = after + lines.length >= (build?.lines.length ?? 0)
      return { lines, ended: build?.view.state !== 'running' && reachesEnd }
    }
    this.#get(id)
    const deadline = Date.now() + wait_ms
    for (let log = read(); ; log = read()) {
      const leftMs = deadline - Date.now()
      if (log.lines.length > 0 || log.ended || leftMs <= 0) return log
      await this.#untilChange(id, leftMs)
    }
  }

  async cancel(id: string, { attempt, reason }: HostBuildCancelBody): Promise<HostBuild> {
    const build = this.#get(id)
    if (attempt < build.view.attempt) {
      throw new FakeHostFailure('fence_lost', `attempt ${build.view.attempt} was started`)
    }
    await this.#cancel(build, reason)
    return build.view
  }

  async delete(id: string): Promise<void> {
    const build = this.builds.get(id)
    if (!build) return
    await this.#cancel(build, 'the template was deleted')
    this.builds.delete(id)
    const images = this.#images()
    const at = images.findIndex(({ name }) => name === templateImageName(id))
    if (at >= 0) images.splice(at, 1)
    notify(build)
  }

  /** The host agent was killed and started again. */
  async interruptAll(): Promise<void> {
    for (const build of this.builds.values()) {
      build.cancelled.abort(new BuildFailure('interrupted', 'the host agent restarted'))
      await build.ended
    }
  }

  async #cancel(build: FakeBuild, reason: string): Promise<void> {
    build.cancelled.abort(new BuildFailure('cancelled', reason))
    await build.ended
  }

  async #run(build: FakeBuild, body: HostBuildBody): Promise<void> {
    const { view } = build
    const { promise: aborted, reject } = Promise.withResolvers<never>()
    aborted.catch(() => {})
    build.cancelled.signal.addEventListener('abort', () => reject(build.cancelled.signal.reason))
    const unlessCancelled = <T>(work: T) => Promise.race([aborted, work])
    try {
      await unlessCancelled(this.#runSteps(build, body, unlessCancelled))
      view.phase = 'packing'
      await unlessCancelled(this.#hooks().beforeBuildPacking?.(view.id))
      const name = templateImageName(view.id)
      const digest = `sha256:${view.id}`
      const { min_disk_mib, size_bytes } = RESULT
      this.#images().push({ name, state: 'ready', digest, size_bytes, min_disk_mib })
      view.phase = 'booting'
      await unlessCancelled(this.#hooks().beforeBuildDone?.(view.id))
      Object.assign(view, { state: 'done', image: { name, digest, ...RESULT } })
    } catch (error) {
      const code = error instanceof BuildFailure ? error.code : 'internal'
      const reason = (error as Error).message
      write(build, `ERROR: ${reason}\n`, Number.POSITIVE_INFINITY)
      Object.assign(view, { state: 'failed', failure: { code, reason } })
    }
    delete view.phase
    view.ended_at = new Date().toISOString()
    notify(build)
  }

  async #runSteps(
    build: FakeBuild,
    body: HostBuildBody,
    unlessCancelled: <T>(work: T) => Promise<Awaited<T>>,
  ): Promise<void> {
    const { view } = build
    const base = this.#images().find(({ name, state }) => name === body.image && state === 'ready')
    if (!base) throw new BuildFailure('image_not_ready', `${body.image} is not on this host`)
    for (const note of body.notes) write(build, `${note}\n`, body.limits.log_bytes)
    const cache = this.#cache.get(body.cache_owner) ?? new Set()
    this.#cache.set(body.cache_owner, cache)
    const keys = keysOfSteps(base.digest ?? '', body.steps as (RunStep | WorkdirStep)[])
    view.phase = 'steps'
    for (const [i, step] of body.steps.entries()) {
      write(build, `#${i + 1} [${i + 1}/${body.steps.length}] ${step.text}\n`, body.limits.log_bytes)
      if (view.steps_run === 0 && !body.no_cache && cache.has(keys[i]!)) {
        view.steps_cached++
        write(build, `#${i + 1} CACHED\n`, body.limits.log_bytes)
        continue
      }
      await unlessCancelled(this.#hooks().beforeBuildStep?.(view.id, step))
      if (step.kind === 'run') await runStep(build, step, body)
      view.steps_run++
      write(build, `#${i + 1} DONE 0.0s\n`, body.limits.log_bytes)
      cache.add(keys[i]!)
    }
  }

  #untilChange(id: string, limitMs: number): Promise<void> {
    const { waiting } = this.#get(id)
    return new Promise((resolve) => {
      const done = () => {
        clearTimeout(timer)
        waiting.delete(done)
        resolve()
      }
      const timer = setTimeout(done, limitMs)
      waiting.add(done)
    })
  }

  #get(id: string): FakeBuild {
    const build = this.builds.get(id)
    if (!build) throw new FakeHostFailure('not_found', `no build ${id} here`)
    return build
  }
}

async function runStep(build: FakeBuild, step: HostBuildStep & { kind: 'run' }, body: HostBuildBody): Promise<void> {
  for (const command of step.argv.at(-1)!.split(';')) {
    const [program, ...args] = command.trim().split(/\s+/)
    if (program === 'echo') write(build, `${args.join(' ')}\n`, body.limits.log_bytes)
    if (program === 'sleep') await timeout(body.limits.steps_ms, build.cancelled.signal)
    if (program === 'exit' && args[0] !== '0') {
      throw new BuildFailure('step_failed', `${step.text} ended with exit code ${args[0]} (line ${step.line})`)
    }
  }
}

function timeout(limitMs: number, cancelled: AbortSignal): Promise<never> {
  return new Promise((_resolve, reject) => {
    const timer = setTimeout(() => {
      reject(new BuildFailure('timeout', `the steps took longer than ${limitMs / 1000} s`))
    }, limitMs)
    cancelled.addEventListener('abort', () => clearTimeout(timer))
  })
}

function write(build: FakeBuild, stream: string, maxBytes: number): void {
  if (build.logBytes > maxBytes) return
  build.logBytes += stream.length
  const text = build.logBytes > maxBytes ? `output beyond ${maxBytes} bytes is dropped\n` : stream
  const { attempt } = build.view
  build.lines.push({ line: build.lines.length + 1, attempt, ts: new Date().toISOString(), stream: text })
  notify(build)
}

function notify({ waiting }: FakeBuild): void {
  for (const done of [...waiting]) done()
}
