/**
 * Compares this workspace with BuildKit, the builder of `docker build`: same steps, same environment, same image, and
 * errors for the same files. buildkit/recorded.jsonl holds what BuildKit 0.34.1 makes of some hundred Dockerfiles, written
 * by hand or made of random pieces; buildkit/main.go records it again.
 *
 * Two differences are known, and such files are not recorded: in words that are split (the delimiter of a heredoc, EXPOSE),
 * BuildKit loses what precedes a substitution with an operator, as in EXPOSE 80${x:-81}; and it keeps an absolute WORKDIR
 * as written, where we remove `..`, `//` and a slash at the end.
 */
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import path from 'node:path'
import { test } from 'node:test'
import { DockerfileError } from './errors.ts'
import { evaluateStage } from './evaluate.ts'
import { EMPTY_IMAGE, type ImageConfig } from './image.ts'
import { parseDockerfile } from './parse.ts'
import { expandGlobal, openStages } from './stages.ts'
import type { Step } from './step.ts'

type Recorded = { dockerfile: string; error?: string; steps?: RecordedStep[]; image?: RecordedImage }
/** Exactly one of argv, folder, file and copyTo. */
type RecordedStep = {
  argv?: string[]
  env?: string[]
  cwd?: string
  user?: string
  folder?: string
  owner?: string
  file?: string
  content?: string
  copyTo?: string
}
type RecordedImage = {
  Env: string[]
  WorkingDir: string
  User?: string
  Cmd?: string[]
  Entrypoint?: string[]
  Shell?: string[]
  ExposedPorts?: Record<string, object>
  Volumes?: Record<string, object>
  Labels?: Record<string, string>
  StopSignal?: string
  Healthcheck?: { Test: string[]; Interval?: number; Timeout?: number; StartPeriod?: number; Retries?: number }
}

const FILE = path.join(import.meta.dirname, '../buildkit/recorded.jsonl')
const recorded = readFileSync(FILE, 'utf8')
  .trim()
  .split('\n')
  .map((line): Recorded => JSON.parse(line))

const accepted = recorded.filter(({ error }) => error === undefined)

test('BuildKit and we refuse the same Dockerfiles', () => {
  const differing = recorded.filter(
    ({ dockerfile, error }) => (error !== undefined) !== (evaluate(dockerfile) === undefined),
  )

  assert.ok(recorded.length > 500)
  assert.deepEqual(differing, [])
})

test('a Dockerfile has the same steps in BuildKit and here', () => {
  for (const { dockerfile, steps = [] } of accepted) {
    assert.deepEqual(evaluate(dockerfile)?.steps.flatMap(describeStep), steps.map(describeRecordedStep), dockerfile)
  }
})

test('a Dockerfile makes the same image in BuildKit and here', () => {
  for (const { dockerfile, image } of accepted) {
    assert.deepEqual(describeImage(evaluate(dockerfile)!.image), describeRecordedImage(image!), dockerfile)
  }
})

/** All stages in order; a stage may build on an earlier one. Undefined for a Dockerfile with an error. */
function evaluate(dockerfile: string): { steps: Step[]; image: ImageConfig } | undefined {
  try {
    const { scope, stages } = openStages(parseDockerfile(dockerfile), 'amd64')
    const images = new Map([['scratch', EMPTY_IMAGE]])
    const all: Step[] = []
    let image = EMPTY_IMAGE
    for (const stage of stages) {
      const base = images.get(expandGlobal(scope, stage.from.image))
      if (base === undefined) return undefined
      const result = evaluateStage(scope, base, stage)
      all.push(...result.steps)
      image = result.image
      if (stage.from.stage !== undefined) images.set(stage.from.stage, image)
    }
    return { steps: all, image }
  } catch (error) {
    if (error instanceof DockerfileError) return undefined
    throw error
  }
}

function describeStep(step: Step): unknown[] {
  if (step.kind === 'workdir') return [['folder', step.workdir, step.user]]
  if (step.kind === 'run') {
    const env = Object.entries(step.env).map(([name, value]) => `${name}=${value}`)
    return [...scriptOf(step), ['run', step.argv, env.sort(), step.workdir, step.user]]
  }
  const owner = step.chown ?? ''
  const copies = [...step.sources, ...step.files].map(() => ['copy', step.destination, owner])
  return [...step.files.toReversed().map(({ name, content }) => ['file', `/${name}`, content]), ...copies]
}

/** BuildKit mounts the folder with the script at /dev/pipes. */
const scriptOf = ({ script }: Extract<Step, { kind: 'run' }>): unknown[] =>
  script === undefined ? [] : [['file', `/${path.basename(script.path)}`, script.content]]

function describeRecordedStep(step: RecordedStep): unknown {
  const { argv, env = [], cwd, user = '', folder, owner = '', file, content = '', copyTo } = step
  if (argv !== undefined) return ['run', argv, env.toSorted(), cwd, user]
  if (folder !== undefined) return ['folder', folder, owner]
  if (file !== undefined) return ['file', file, content]
  return ['copy', copyTo, owner]
}

function describeImage(image: ImageConfig): unknown {
  const { healthcheck } = image
  return {
    env: Object.entries(image.env)
      .map(([name, value]) => `${name}=${value}`)
      .sort(),
    workdir: image.workdir,
    user: image.user,
    cmd: image.cmd ?? [],
    entrypoint: image.entrypoint ?? [],
    ports: [...new Set(image.ports.flatMap(listPorts))].sort(),
    volumes: [...new Set(image.volumes)].sort(),
    labels: image.labels,
    stopSignal: image.stopSignal,
    healthcheck:
      typeof healthcheck === 'object'
        ? [healthcheck.intervalMs, healthcheck.timeoutMs, healthcheck.startPeriodMs, healthcheck.retries]
        : healthcheck,
  }
}

const listPorts = ({ first, last, protocol }: ImageConfig['ports'][number]): string[] =>
  Array.from({ length: last - first + 1 }, (_, i) => `${first + i}/${protocol}`)

const NANOSECONDS_PER_MS = 1_000_000

function describeRecordedImage(image: RecordedImage): unknown {
  const ms = (nanoseconds: number | undefined) =>
    nanoseconds === undefined ? undefined : nanoseconds / NANOSECONDS_PER_MS
  const { Healthcheck: check } = image
  const times = check && [ms(check.Interval), ms(check.Timeout), ms(check.StartPeriod), check.Retries]
  return {
    env: image.Env.toSorted(),
    workdir: image.WorkingDir,
    user: image.User ?? '',
    cmd: image.Cmd ?? [],
    entrypoint: image.Entrypoint ?? [],
    ports: Object.keys(image.ExposedPorts ?? {}).sort(),
    volumes: Object.keys(image.Volumes ?? {}).sort(),
    labels: image.Labels ?? {},
    stopSignal: image.StopSignal,
    healthcheck: check?.Test[0] === 'NONE' ? 'NONE' : times,
  }
}
