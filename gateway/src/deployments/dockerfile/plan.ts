/**
 * Turns the Dockerfile of a project into steps for one build sandbox. All stages are replayed in it, in order, over one file
 * system; `COPY --from` copies inside it. That is right as long as the bases of all stages are of one family.
 *
 * Only the stages that the last one needs are replayed, as BuildKit does.
 */
import {
  type Dockerfile,
  DockerfileError,
  evaluateStage,
  expandGlobal,
  type ImageConfig,
  openStages,
  parseDockerfile,
  type Stage,
  type Step,
} from '@warren/dockerfile'
import type { Settings } from '../../uploads/settings.ts'
import { chooseImage, type Images } from '../detect/images.ts'
import type { Project } from '../detect/project.ts'
import { DEFAULT_PORT, type Plan, PlanError, type RunPlan } from '../plan.ts'
import { findIgnored } from './dockerignore.ts'
import { type Base, findBase } from './families.ts'

export function planDockerfile(
  project: Project,
  settings: Settings,
  buildVars: Record<string, string>,
  images: Images,
): Plan {
  const text = project.text('Dockerfile')
  if (text === undefined) {
    throw new PlanError(
      project.has('Dockerfile')
        ? 'the Dockerfile is too large'
        : 'the upload has no Dockerfile; settings.hasDockerfile is set',
    )
  }
  if (text.includes('\0')) throw new PlanError('Dockerfile: it contains NUL characters; save it as UTF-8 text')
  try {
    const ignored = findIgnored(project.text('.dockerignore') ?? '', project.list())
    return plan(parseDockerfile(text), ignored, settings, buildVars, images)
  } catch (error) {
    if (error instanceof DockerfileError) throw new PlanError(`Dockerfile: ${error.message}`)
    throw error
  }
}

type BuiltStage = { steps: Step[]; image: ImageConfig; base: Base; needs: number[] }

function plan(
  file: Dockerfile,
  ignored: string[],
  settings: Settings,
  buildVars: Record<string, string>,
  images: Images,
): Plan {
  const { scope, stages } = openStages(withBuildVars(file, buildVars), 'amd64')
  const args = scope.globalArgs as Map<string, string>
  for (const [name, value] of Object.entries(buildVars)) args.set(name, value)
  const built: BuiltStage[] = []
  for (const [index, stage] of stages.entries()) {
    checkInstructions(stage)
    const from = expandGlobal(scope, stage.from.image)
    const parent = findStage(stages, from, index)
    const base = parent === undefined ? getBase(stage, from) : built[parent]!.base
    const config = parent === undefined ? base.config : built[parent]!.image
    const { steps, image } = evaluateStage(scope, config, stage)
    const copied = steps.flatMap((step) =>
      isCopy(step) && step.from !== undefined ? [getStage(stages, step, index)] : [],
    )
    built.push({ steps, image, base, needs: [...(parent === undefined ? [] : [parent]), ...copied] })
  }
  const last = built.at(-1)!
  const needed = collectNeeded(built)
  checkFamilies(
    needed.map((index) => ({ from: expandGlobal(scope, stages[index]!.from.image), base: built[index]!.base })),
  )
  const { image, notes } = chooseImage({ runtime: last.base.runtime ?? 'dockerfile' }, images)
  return {
    image,
    notes: [
      `Dockerfile: ${needed.length} of ${built.length} stages`,
      ...notes,
      ...(last.base.family === 'alpine' ? [`the base is Alpine; ${image} is Debian, where apk is not available`] : []),
    ],
    build: { kind: 'dockerfile', steps: needed.flatMap((index) => built[index]!.steps), ignored },
    run: runOf(last.image, settings),
    port: settings.port ?? firstPort(last.image) ?? DEFAULT_PORT,
  }
}

/** A value from the settings wins over the default in the file, as with `--build-arg`. */
function withBuildVars({ directives, instructions }: Dockerfile, buildVars: Record<string, string>): Dockerfile {
  return {
    directives,
    instructions: instructions.map((instruction) =>
      instruction.name === 'ARG'
        ? {
            ...instruction,
            args: instruction.args.map((arg) =>
              Object.hasOwn(buildVars, arg.name) ? { name: arg.name, value: undefined } : arg,
            ),
          }
        : instruction,
    ),
  }
}

const isCopy = (step: Step): step is Extract<Step, { kind: 'copy' | 'add' }> =>
  step.kind === 'copy' || step.kind === 'add'

/** Only stages before this one; names ignore case. */
function findStage(stages: Stage[], reference: string, before: number): number | undefined {
  const name = reference.toLowerCase()
  const index = stages.slice(0, before).findLastIndex(({ from }) => from.stage?.toLowerCase() === name)
  if (index >= 0) return index
  return /^\d+$/.test(reference) && Number(reference) < before ? Number(reference) : undefined
}

function getStage(stages: Stage[], step: Extract<Step, { kind: 'copy' | 'add' }>, before: number): number {
  const index = findStage(stages, step.from!, before)
  if (index !== undefined) return index
  throw new PlanError(
    `Dockerfile: line ${step.line}: COPY --from=${step.from} names an image; only stages can be copied from`,
  )
}

function getBase(stage: Stage, reference: string): Base {
  const base = findBase(reference)
  if (base) return base
  const supported = 'node, python, golang, rust, oven/bun, debian, ubuntu, alpine, distroless or scratch'
  throw new PlanError(`Dockerfile: line ${stage.from.line}: there is no image like ${reference}; build on ${supported}`)
}

function checkFamilies(used: { from: string; base: Base }[]): void {
  const named = used.filter(({ base }) => base.family !== 'any')
  const other = named.find(({ base }) => base.family !== named[0]!.base.family)
  if (!other) return
  throw new PlanError(
    `Dockerfile: its stages build on different systems (${named[0]!.from} and ${other.from}); use bases of one system`,
  )
}

/** What has no counterpart in a sandbox fails here instead of being left out silently. */
function checkInstructions({ instructions }: Stage): void {
  for (const instruction of instructions) {
    const refuse = (what: string) => {
      throw new PlanError(`Dockerfile: line ${instruction.line}: ${what}`)
    }
    if (instruction.name === 'RUN') {
      const mount = instruction.mounts.find((one) => !/(?:^|,)type=(?:cache|tmpfs)(?:,|$)/.test(one))
      if (mount !== undefined) refuse(`RUN --mount=${mount} is not supported; use COPY`)
    }
    if (instruction.name === 'ADD') {
      const remote = instruction.sources.find(
        (one) => typeof one === 'string' && /^(?:https?|git|ssh):|^git@/.test(one),
      )
      if (remote !== undefined) refuse('ADD of a URL is not supported; use RUN with curl')
    }
  }
}

function collectNeeded(built: BuiltStage[]): number[] {
  const needed = new Set<number>()
  const visit = (index: number): void => {
    if (needed.has(index)) return
    needed.add(index)
    built[index]!.needs.forEach(visit)
  }
  visit(built.length - 1)
  return [...needed].sort((a, b) => a - b)
}

function runOf(image: ImageConfig, { runCommand, runFlag }: Settings): RunPlan {
  const { entrypoint = [], cmd = [], env, user, workdir, healthcheck } = image
  const flags = runFlag === null ? '' : ` ${runFlag}`
  const given = runCommand === null ? undefined : ['/bin/sh', '-c', `${runCommand}${flags}`]
  const argv = given ?? [...entrypoint, ...cmd]
  if (argv.length === 0) throw new PlanError('Dockerfile: it has no CMD and no ENTRYPOINT; set settings.runCommand')
  const check = healthcheck === undefined || healthcheck === 'NONE' ? undefined : healthcheck.argv
  return { kind: 'image', argv, env, user, workdir, healthcheck: check }
}

const firstPort = ({ ports }: ImageConfig): number | undefined =>
  ports.find(({ protocol }) => protocol === 'tcp')?.first
