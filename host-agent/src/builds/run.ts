/**
 * One attempt of a build. Order of events:
 *
 *   1. The keys of all steps follow from the digest of the base image. The longest run of steps in the cache is taken; the
 *      log says `CACHED` for each.
 *   2. If all steps and the result are cached, the result gets another name and no VM is needed: continue with 6.
 *   3. A VM starts (vm.ts): a clone of the base, or a boot on the cached layers. Its time limit starts now.
 *   4. Each remaining step is a managed process in the guest (step.ts). After it the disk is frozen, becomes an object of the
 *      snapshot store and an entry of the cache.
 *   5. The image is made and published (pack.ts), outside the time limit.
 *   6. Bases of the wanted sizes are booted, so that the first sandbox starts as fast as any other.
 *
 * Whatever fails, the VM is deleted. Finished steps stay in the cache, so the next attempt is short.
 */
import { keyOfBase, keysOfSteps, type RunStep, type WorkdirStep } from '@warren/dockerfile'
import { abortable } from '@warren/kit/abortable'
import { crashPoint } from '@warren/kit/crash-point'
import { type HostBuild, type HostBuildBody, type HostBuildPhase, templateImageName } from '@warren/protocol'
import { Type } from 'typebox'
import type { Base } from '../bases/base.ts'
import { ensureBase } from '../bases/ensure.ts'
import type { Deps } from '../deps.ts'
import { callGuest } from '../guest/call-guest.ts'
import type { Image } from '../images/store.ts'
import { type CachedLayer, keyOfResult, type StepCache } from './cache.ts'
import { BuildFailure } from './failure.ts'
import type { BuildLog } from './log.ts'
import { packImage, tooLarge } from './pack.ts'
import { runStep } from './step.ts'
import { type BuildVm, startBuildVm, type TakenLayer } from './vm.ts'

export type Attempt = {
  readonly build: HostBuild
  readonly log: BuildLog
  readonly body: HostBuildBody
  setPhase(phase: HostBuildPhase): void
}

/**
 * What all steps together may write, as a multiple of the disk. The guest says how much of its disk is used and may lie, and
 * files that one step deletes are still in the layer of an earlier one.
 */
const WRITTEN_DISKS_MAX = 3

/** Removing what belongs to the machine and trimming; not part of the time of the steps. */
const PACK_LIMIT_MS = 120_000

type Result = NonNullable<HostBuild['image']>

export async function runAttempt(deps: Deps, cache: StepCache, attempt: Attempt, signal: AbortSignal): Promise<Result> {
  const { build, log, body } = attempt
  for (const note of body.notes) log.writeLine(note)
  const image = await findBaseImage(deps, body)
  const steps = body.steps as (RunStep | WorkdirStep)[]
  const keys = keysOfSteps(image.digest, steps)
  const resultKey = keyOfResult(keys.at(-1) ?? keyOfBase(image.digest), body.env)
  const shape = { vcpu: body.vcpu, mem_mib: body.mem_mib }
  const { base } = await abortable(ensureBase(deps, image, shape, body.disk_mib), signal)
  const prefix = await cache.takePrefix(body.cache_owner, body.no_cache ? [] : keys, base, Date.now())
  try {
    build.steps_cached = prefix.layers.length
    for (const n of prefix.layers.keys()) {
      log.writeLine(titleOf(body, n))
      log.writeLine(`#${n + 1} CACHED`)
    }
    const isComplete = prefix.layers.length === keys.length && !body.no_cache
    const known = isComplete ? await reuseResult(deps, cache, attempt, resultKey, signal) : undefined
    const result = known ?? (await buildResult(deps, cache, { attempt, base, keys, layers: prefix.layers, signal }))
    if (!known) {
      const { digest, size_bytes } = result
      await cache.addResult(body.cache_owner, resultKey, { digest, size_bytes, used_ms: Date.now() })
    }
    attempt.setPhase('booting')
    await bootBases(deps, attempt, result, signal)
    return result
  } finally {
    await prefix.release()
  }
}

async function findBaseImage(deps: Deps, { image: name, disk_mib }: HostBuildBody): Promise<Image> {
  const image = await deps.images.find(name)
  if (!image) throw new BuildFailure('image_not_ready', `the base ${name} is not on this host`)
  if (image.minDiskMib > disk_mib) {
    throw new BuildFailure('too_large', `the base ${name} needs ${image.minDiskMib} MiB, builds have ${disk_mib} MiB`)
  }
  return image
}

const titleOf = ({ steps }: HostBuildBody, n: number): string =>
  `#${n + 1} [${n + 1}/${steps.length}] ${steps[n]!.text}`

/** The image of the same build, if a template that has it still exists. */
async function reuseResult(
  deps: Deps,
  cache: StepCache,
  { build, body }: Attempt,
  key: string,
  signal: AbortSignal,
): Promise<Result | undefined> {
  const known = cache.findResult(body.cache_owner, key)
  const image = known && (await deps.templateImages.link(templateImageName(build.id), known.digest, signal))
  if (!image) return undefined
  await cache.addResult(body.cache_owner, key, { ...known, used_ms: Date.now() })
  return renderResult(image, known.size_bytes)
}

const renderResult = ({ name, digest, minDiskMib }: Image, size_bytes: number): Result => ({
  name,
  digest,
  size_bytes,
  min_disk_mib: minDiskMib,
})

type Work = { attempt: Attempt; base: Base; keys: string[]; layers: readonly CachedLayer[]; signal: AbortSignal }

async function buildResult(deps: Deps, cache: StepCache, work: Work): Promise<Result> {
  const { attempt, base, signal } = work
  const { body, build } = attempt
  const taken: TakenLayer[] = []
  const limit = new AbortController()
  const timer = setTimeout(() => {
    const seconds = body.limits.steps_ms / 1000
    limit.abort(new BuildFailure('timeout', `the steps took longer than ${seconds} s, the limit for a build`))
  }, body.limits.steps_ms)
  let vm: BuildVm | undefined
  try {
    const inTime = AbortSignal.any([signal, limit.signal])
    const below = work.layers.map(({ object }) => object)
    vm = await startBuildVm(deps, { base, layers: below, body }, inTime).catch((error) => {
      inTime.throwIfAborted()
      throw error
    })
    attempt.setPhase('steps')
    await runSteps(deps, cache, vm, work, taken, inTime)
    clearTimeout(timer)
    attempt.setPhase('packing')
    attempt.log.writeLine('Packing the image')
    taken.push(await packInGuest(vm, body, signal))
    await vm.stop()
    const layers = [...below, ...taken.map(({ object }) => object)]
    const { image, usedBytes } = await packImage(
      deps,
      {
        ...{ name: templateImageName(build.id), base, layers, maxBytes: body.limits.rootfs_bytes },
        source: `template ${build.id} from ${body.image}`,
      },
      signal,
    )
    await crashPoint('host.build.published')
    return renderResult(image, usedBytes)
  } finally {
    clearTimeout(timer)
    await vm?.stop()
    for (const layer of taken) await layer.release()
  }
}

async function runSteps(
  deps: Deps,
  cache: StepCache,
  vm: BuildVm,
  { attempt, base, keys, layers }: Work,
  taken: TakenLayer[],
  signal: AbortSignal,
): Promise<void> {
  const { build, log, body } = attempt
  const alive = AbortSignal.any([signal, vm.died])
  const operatorEnv = deps.operatorSettings.default_envs
  for (let n = layers.length; n < body.steps.length; n++) {
    log.writeLine(titleOf(body, n))
    const startedAt = performance.now()
    try {
      await crashPoint('host.build.step')
      await abortable(runStep({ vmm: vm.vmm, log, operatorEnv }, body.steps[n]!, alive), alive)
      const layer = await vm.takeLayer(alive)
      taken.push(layer)
      if (layer.usedBytes > body.limits.rootfs_bytes) throw tooLarge(layer.usedBytes, body.limits.rootfs_bytes)
      checkWritten([...layers, ...taken], body.disk_mib)
      await crashPoint('host.build.stepSaved')
      const disk = [...layers, ...taken.map(({ object, bytes }) => ({ object, bytes }))]
      const entry = { layers: disk, base: { key: base.key, id: base.id }, used_ms: Date.now() }
      await cache.addDisk(body.cache_owner, keys[n]!, entry)
      await crashPoint('host.build.stepCached')
    } catch (error) {
      // That the VM died explains every other error of a step.
      await untilDeathIsKnown(vm, error)
      alive.throwIfAborted()
      throw error
    }
    build.steps_run++
    log.writeLine(`#${n + 1} DONE ${((performance.now() - startedAt) / 1000).toFixed(1)}s`)
  }
}

export function checkWritten(layers: readonly Pick<CachedLayer, 'bytes'>[], diskMib: number): void {
  const writtenBytes = layers.reduce((sum, { bytes }) => sum + bytes, 0)
  if (writtenBytes <= WRITTEN_DISKS_MAX * diskMib * 1024 * 1024) return
  const size = `${(writtenBytes / 1e9).toFixed(1)} GB`
  throw new BuildFailure(
    'too_large',
    `the steps have written ${size}, more than ${WRITTEN_DISKS_MAX} times the disk of a build`,
  )
}

/** The channel to the guest breaks a moment before the exit of QEMU is noticed. */
async function untilDeathIsKnown({ died }: BuildVm, error: unknown): Promise<void> {
  if (died.aborted || error instanceof BuildFailure) return
  await new Promise<void>((resolve) => {
    const timer = setTimeout(resolve, DEATH_WAIT_MS)
    died.addEventListener('abort', () => {
      clearTimeout(timer)
      resolve()
    })
  })
}
const DEATH_WAIT_MS = 3_000

async function packInGuest(vm: BuildVm, body: HostBuildBody, signal: AbortSignal): Promise<TakenLayer> {
  const limit = AbortSignal.timeout(PACK_LIMIT_MS)
  const limited = AbortSignal.any([signal, vm.died, limit])
  try {
    const { session } = await vm.vmm.channel(limited)
    const request = { method: 'POST', path: '/pack', body: { envs: body.env }, response: Type.Object({}) } as const
    await callGuest(session, request, limited)
    return await vm.takeLayer(limited)
  } catch (error) {
    await untilDeathIsKnown(vm, error)
    if (limit.aborted) throw new Error(`the guest did not prepare its disk within ${PACK_LIMIT_MS / 1000} s`)
    limited.throwIfAborted()
    throw error
  }
}

async function bootBases(deps: Deps, { body, log }: Attempt, result: Result, signal: AbortSignal): Promise<void> {
  const image = await deps.images.find(result.name)
  if (!image) throw new Error(`${result.name} is gone`)
  for (const { vcpu, mem_mib, disk_mib } of body.bases) {
    log.writeLine(`Booting it once with ${vcpu} vCPU and ${mem_mib} MiB`)
    const diskMib = Math.max(disk_mib, image.minDiskMib)
    await abortable(ensureBase(deps, image, { vcpu, mem_mib }, diskMib), signal).catch((error) => {
      signal.throwIfAborted()
      const why = (error as Error).message
      throw new BuildFailure('step_failed', `the image does not boot: ${why}`, { cause: error })
    })
    await crashPoint('host.build.booted')
  }
}
