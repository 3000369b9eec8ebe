/** Finds what FROM names: an image on the operator's list, or a ready template of the caller. */
import { DockerfileError, type InstructionOf } from '@warren/dockerfile'

/** Names under which other services publish images that are equivalent to ours. */
export const TEMPLATE_BASE_ALIASES: Readonly<Record<string, string>> = {
  'nodeops/sandbox:debian': 'debian:13',
  'nodeops/sandbox:alpine': 'alpine:3.20',
}

/** What FROM may name unless the operator says otherwise. */
export const DEFAULT_TEMPLATE_BASES: readonly string[] = [
  'debian:13',
  'devbox:1',
  'ubuntu:26.04',
  'alpine:3.20',
  ...Object.keys(TEMPLATE_BASE_ALIASES),
]

export type BaseRules = {
  /** Images that FROM may name. An alias is allowed with its image. */
  allowedBases: readonly string[]
  /** Whether a host has the image: its environment, or the command with which an operator adds it. */
  findImage: (name: string) => Promise<{ env: Record<string, string> } | { addWith: string }>
  /** The caller's latest ready template with this name or id. */
  findReadyTemplate: (nameOrId: string) => Promise<{ id: string; env: Record<string, string> } | undefined>
}

export type TemplateBase = {
  source: { kind: 'image'; name: string } | { kind: 'template'; id: string }
  env: Record<string, string>
}

/** `written` is the name in FROM, without quotes. Throws a DockerfileError. */
export async function getBase(rules: BaseRules, from: InstructionOf<'FROM'>, written: string): Promise<TemplateBase> {
  if (written.includes('@')) throw new DockerfileError(from, 'images are chosen by name; remove the digest after @')
  const name = shortName(written)
  const image = Object.hasOwn(TEMPLATE_BASE_ALIASES, name) ? TEMPLATE_BASE_ALIASES[name]! : name
  if (rules.allowedBases.includes(name) || rules.allowedBases.includes(image)) return getImage(rules, from, image)
  const template = isTemplateReference(written) ? await rules.findReadyTemplate(written) : undefined
  if (template !== undefined) return { source: { kind: 'template', id: template.id }, env: template.env }
  const names = rules.allowedBases.join(', ')
  throw new DockerfileError(
    from,
    `${shorten(written)} cannot be a base; use a ready template of yours, or one of: ${names}`,
  )
}

async function getImage(rules: BaseRules, from: InstructionOf<'FROM'>, name: string): Promise<TemplateBase> {
  const found = await rules.findImage(name)
  if ('addWith' in found) {
    throw new DockerfileError(from, `${name} is not on this server; an operator adds it with: ${found.addWith}`)
  }
  return { source: { kind: 'image', name }, env: found.env }
}

/** Docker's long spellings of the same image. */
const shortName = (name: string): string => name.replace(/^(index\.)?docker\.io\//, '').replace(/^library\//, '')

const isTemplateReference = (name: string): boolean => /^([a-z0-9-]{1,63}|tpl_[0-9A-Za-z]{26})$/.test(name)

const shorten = (name: string): string => (name.length > 100 ? `${name.slice(0, 100)}…` : name)
