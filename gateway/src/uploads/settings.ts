/** The `settings` of a deploy body. Unknown keys are ignored; null means the default. */
import { checkEnvs } from '@warren/protocol'
import { fault } from './fault.ts'
import { checkPath } from './path.ts'

export const RUNTIMES = [
  'build-ai',
  'dockerfile',
  'node:18',
  'node:20',
  'node:22',
  'python:3.11',
  'python:3.12',
  'golang:1.22',
  'golang:1.25',
  'rust:1.75',
  'bun:1.1',
  'bun:1.3',
  'static',
] as const
export const FRAMEWORKS = [
  'nextjs',
  'reactjs-spa',
  'reactjs-ssr',
  'vuejs-spa',
  'vuejs-ssr',
  'vite-spa',
  'nuxtjs',
  'astro',
  'remix',
  'express',
  'fastapi',
  'flask',
  'django',
  'gin',
  'fiber',
  'actix',
] as const

export type Settings = {
  /** Null: that of the Dockerfile, or 3000. */
  port: number | null
  runtime: (typeof RUNTIMES)[number]
  useBuildAI: boolean
  framework: (typeof FRAMEWORKS)[number] | null
  installCommand: string | null
  buildCommand: string | null
  runCommand: string | null
  hasDockerfile: boolean
  buildDir: string | null
  directoryPath: string | null
  buildFlag: string | null
  runFlag: string | null
}
/** Environment variables of the app and of the build. Encrypted at rest, never shown or logged. */
export type Secrets = { runEnvs: Record<string, string> | null; buildVars: Record<string, string> | null }

const COMMAND_MAX = 255

export function parseSettings(value: unknown): { settings: Settings; secrets: Secrets } {
  if (value !== undefined && value !== null && !isObject(value)) throw fault('settings', 'must be an object')
  const given = new Map(Object.entries(value ?? {}))
  const get = (name: string): unknown => given.get(name) ?? undefined
  return {
    settings: {
      port: parsePort(get('port')),
      runtime: parseChoice('runtime', get('runtime'), RUNTIMES) ?? 'build-ai',
      useBuildAI: parseFlag('useBuildAI', get('useBuildAI'), true),
      framework: parseChoice('framework', get('framework'), FRAMEWORKS) ?? null,
      installCommand: parseCommand('installCommand', get('installCommand')),
      buildCommand: parseCommand('buildCommand', get('buildCommand')),
      runCommand: parseCommand('runCommand', get('runCommand')),
      hasDockerfile: parseFlag('hasDockerfile', get('hasDockerfile'), false),
      buildDir: parseFolder('buildDir', get('buildDir')),
      directoryPath: parseFolder('directoryPath', get('directoryPath')),
      buildFlag: parseCommand('buildFlag', get('buildFlag')),
      runFlag: parseCommand('runFlag', get('runFlag')),
    },
    secrets: {
      runEnvs: parseEnvs('runEnvs', get('runEnvs')),
      buildVars: parseEnvs('buildVars', get('buildVars')),
    },
  }
}

export const isObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === 'object' && value !== null && !Array.isArray(value)

/** In characters as people count them. The first test keeps a text of megabytes from being taken apart. */
export const isLongerThan = (text: string, max: number): boolean => text.length > 2 * max || [...text].length > max

/** PostgreSQL stores neither NUL characters nor halves of surrogate pairs, and a payment may come before it says so. */
export const isStorable = (text: string): boolean => text.isWellFormed() && !text.includes('\0')

function parsePort(value: unknown): number | null {
  if (value === undefined) return null
  if (!Number.isInteger(value) || (value as number) < 1 || (value as number) > 65_535) {
    throw fault('settings.port', 'must be a whole number from 1 to 65535')
  }
  return value as number
}

function parseChoice<const T extends string>(name: string, value: unknown, choices: readonly T[]): T | undefined {
  if (value === undefined || value === '') return undefined
  const found = choices.find((one) => one === value)
  if (found === undefined) throw fault(`settings.${name}`, `must be one of ${choices.join(', ')}`)
  return found
}

function parseFlag(name: string, value: unknown, standard: boolean): boolean {
  if (value === undefined) return standard
  if (typeof value !== 'boolean') throw fault(`settings.${name}`, 'must be true or false')
  return value
}

function parseCommand(name: string, value: unknown): string | null {
  if (value === undefined || value === '') return null
  if (typeof value !== 'string' || isLongerThan(value, COMMAND_MAX) || !isStorable(value)) {
    throw fault(`settings.${name}`, `must be text of at most ${COMMAND_MAX} characters, or null`)
  }
  return value
}

/** `./dist/` is `dist`; the top of the upload is null. */
function parseFolder(name: string, value: unknown): string | null {
  if (value === undefined) return null
  if (typeof value !== 'string') throw fault(`settings.${name}`, 'must be text or null')
  const folder = value.replace(/^(?:\.\/)+/, '').replace(/\/$/, '')
  if (folder === '' || folder === '.') return null
  const wrong = checkPath(folder)
  if (wrong !== undefined) throw fault(`settings.${name}`, wrong)
  return folder
}

function parseEnvs(name: string, value: unknown): Record<string, string> | null {
  if (value === undefined) return null
  if (!isObject(value)) throw fault(`settings.${name}`, 'must be an object of names and text values')
  for (const [key, one] of Object.entries(value)) {
    if (typeof one !== 'string' || !one.isWellFormed()) {
      throw fault(`settings.${name}`, `the value of ${JSON.stringify(key.slice(0, 64))} must be text`)
    }
  }
  const envs = value as Record<string, string>
  const wrong = checkEnvs(envs)
  if (wrong !== undefined) throw fault(`settings.${name}`, wrong)
  return Object.keys(envs).length === 0 ? null : envs
}
