/** For tests of template plans: rules with a few images and templates, and plans as lines of text. */
import { EMPTY_IMAGE } from '@warren/dockerfile'
import { DEFAULT_TEMPLATE_BASES } from './base.ts'
import type { TemplatePlan, TemplateRules, TemplateStep } from './plan.ts'

export const RULES: TemplateRules = {
  architecture: 'amd64',
  allowedBases: DEFAULT_TEMPLATE_BASES,
  findImage: async (name) =>
    name === 'ubuntu:26.04' ? { addWith: 'warren images import SOURCE --name ubuntu:26.04' } : { env: {} },
  findReadyTemplate: async (nameOrId) =>
    ['my-tools', MY_TEMPLATE_ID].includes(nameOrId)
      ? { id: MY_TEMPLATE_ID, env: { TOOLS: '/opt/tools', PATH: '/opt/tools/bin:/usr/bin' } }
      : undefined,
}

const MY_TEMPLATE_ID = 'tpl_01JD0000000000000000000000'

/** A line for the base, for each step, for the variables and for each note. The default PATH is left out. */
export function describePlan({ source, steps, env, notes }: TemplatePlan): string[] {
  return [
    source.kind === 'image' ? `image ${source.name}` : `template ${source.id}`,
    ...steps.map(describeStep),
    ...(Object.keys(env).length > 0 ? [`env${describeEnv(env)}`] : []),
    ...notes.map((note) => `note ${note}`),
  ]
}

function describeStep(step: TemplateStep): string {
  const user = step.user === '' ? '' : ` as ${step.user}`
  if (step.kind === 'workdir') return `folder ${step.workdir}${user}`
  const folder = step.workdir === '/' ? '' : ` in ${step.workdir}`
  const script = step.script === undefined ? '' : ` with ${JSON.stringify(step.script.content)}`
  return `run ${JSON.stringify(step.argv)}${script}${user}${folder}${describeEnv(step.env)}`
}

const describeEnv = (env: Record<string, string>): string =>
  Object.entries(env)
    .filter(([name, value]) => name !== 'PATH' || value !== EMPTY_IMAGE.env.PATH)
    .map(([name, value]) => ` ${name}=${/^[^\s"]+$/.test(value) ? value : JSON.stringify(value)}`)
    .join('')
