/** From the Dockerfile of a template to the plan of its build. Nothing is executed or stored here. */
import {
  type Architecture,
  DockerfileError,
  EMPTY_IMAGE,
  evaluateStage,
  expandGlobal,
  type Instruction,
  openStages,
  parseDockerfile,
  type RunStep,
  type Step,
  type WorkdirStep,
} from '@warren/dockerfile'
import { badField } from '@warren/kit/failure'
import { checkDockerfileSize, checkEnvs, ENVS_MAX_BYTES, type Envs, utf8Length } from '@warren/protocol'
import { type BaseRules, getBase, type TemplateBase } from './base.ts'
import { judgeDockerfile } from './judge.ts'

export type TemplateRules = BaseRules & { architecture: Architecture }

export type TemplatePlan = {
  /** The base as FROM names it. */
  base: string
  source: TemplateBase['source']
  /** Environment of the base. */
  baseEnv: Envs
  steps: TemplateStep[]
  /** Default environment of sandboxes made from the template. */
  env: Envs
  /** For the build log: instructions without effect. */
  notes: string[]
}
export type TemplateStep = RunStep | WorkdirStep

/** Throws a 400 whose field `dockerfile` names line, instruction and remedy. */
export async function planTemplate(rules: TemplateRules, text: string): Promise<TemplatePlan> {
  const sizeError = checkDockerfileSize(text)
  if (sizeError !== undefined) throw badField({ dockerfile: sizeError })
  try {
    return await plan(rules, text)
  } catch (error) {
    if (error instanceof DockerfileError) throw badField({ dockerfile: error.message })
    throw error
  }
}

async function plan(rules: TemplateRules, text: string): Promise<TemplatePlan> {
  const dockerfile = parseDockerfile(text)
  const notes = judgeDockerfile(dockerfile, `linux/${rules.architecture}`)
  const { scope, stages } = openStages(dockerfile, rules.architecture)
  const [stage] = stages
  if (stage === undefined) throw new Error('a parsed Dockerfile has no stage')
  const name = expandGlobal(scope, stage.from.image)
  const base = await getBase(rules, stage.from, name)
  const image = { ...EMPTY_IMAGE, env: { ...EMPTY_IMAGE.env, ...base.env } }
  const { steps, image: result } = evaluateStage(scope, image, stage)
  checkStepEnvs(dockerfile.instructions, steps)
  const env = withoutDefaultPath(result.env)
  checkDefaultEnv(dockerfile.instructions, env)
  return { base: name, source: base.source, baseEnv: base.env, steps: steps.filter(isTemplateStep), env, notes }
}

/** COPY and ADD are refused before. */
const isTemplateStep = (step: Step): step is TemplateStep => step.kind === 'run' || step.kind === 'workdir'

/** Every guest has this PATH anyway. As a variable of the template it would hide one that an operator sets. */
function withoutDefaultPath(env: Record<string, string>): Envs {
  const { PATH, ...others } = env
  return PATH === undefined || PATH === EMPTY_IMAGE.env.PATH ? others : env
}

/** The variables of a template have the limits of those of a sandbox. */
function checkDefaultEnv(instructions: Instruction[], env: Envs): void {
  const problem = checkEnvs(env)
  if (problem === undefined) return
  const at = instructions.findLast(({ name }) => name === 'ENV') ?? instructions[0]!
  throw new DockerfileError(at, `the environment of a sandbox cannot hold this: ${problem}`)
}

/** Each step carries its variables, so this also bounds the size of the plan. */
function checkStepEnvs(instructions: Instruction[], steps: Step[]): void {
  const checked = new Set<object>()
  for (const { env, line } of steps) {
    if (checked.has(env)) continue
    checked.add(env)
    const bytes = Object.entries(env).reduce((sum, [name, value]) => sum + utf8Length(name) + utf8Length(value), 0)
    if (bytes <= ENVS_MAX_BYTES) continue
    const at = instructions.find((instruction) => instruction.line === line)!
    throw new DockerfileError(
      at,
      `ENV and ARG take ${bytes} bytes here, more than ${ENVS_MAX_BYTES}; use shorter values`,
    )
  }
}
