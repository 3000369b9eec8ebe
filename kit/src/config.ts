/**
 * Settings are declared as a table, read from environment variables once at start, and checked together: one error
 * names every setting with a wrong value. `npm run docs` writes docs/configuration.md from the same tables.
 */

export class ConfigError extends Error {
  override name = 'ConfigError'
}

type Env = Record<string, string | undefined>

export type Setting<T> = {
  /** The environment variable. */
  name: string
  /** One sentence for docs/configuration.md. */
  description: string
  /** The default as docs/configuration.md shows it. */
  defaultText: string
  /** Set by `warren start` or by tests for the processes that they start; left out of docs/configuration.md. */
  internal: boolean
  read: (text: string | undefined) => T
}

type Documentation = { description: string; defaultText?: string; internal?: boolean }

export const text = <T extends string | undefined>(name: string, options: { default: T } & Documentation) =>
  setting<string | T>(name, options, (value) => value)

export const integer = (name: string, options: { default: number; min: number; max: number } & Documentation) =>
  setting(name, options, (value) => {
    const number = Number(value)
    if (!/^-?\d+$/.test(value) || number < options.min || number > options.max) {
      throw new Error(`must be a whole number from ${options.min} to ${options.max}, not "${value}"`)
    }
    return number
  })

/** Read as a whole number of the smallest unit: with 2 decimals, "1.5" is 150. */
export const decimal = (name: string, options: { default: string; decimals: number; max: number } & Documentation) => {
  const { decimals, max } = options
  const parse = (value: string): number => {
    const [, whole = '', fraction = ''] = /^(\d{1,9})(?:\.(\d+))?$/.exec(value) ?? []
    if (whole === '' || fraction.length > decimals || Number(value) > max) {
      throw new Error(`must be a number from 0 to ${max} with at most ${decimals} decimals, not "${value}"`)
    }
    return Number(whole + fraction.padEnd(decimals, '0'))
  }
  return setting(name, { ...options, default: parse(options.default), defaultText: options.default }, parse)
}

export const choice = <const T extends string>(
  name: string,
  options: { default: T; choices: readonly T[] } & Documentation,
) =>
  setting<T>(name, options, (value) => {
    const found = options.choices.find((one) => one === value)
    if (found === undefined) throw new Error(`must be one of ${options.choices.join(', ')}, not "${value}"`)
    return found
  })

export const flag = (name: string, options: { default: boolean } & Documentation) =>
  setting(name, { defaultText: options.default ? 'on' : 'off', ...options }, (value) => {
    if (['1', 'true', 'yes', 'on'].includes(value)) return true
    if (['0', 'false', 'no', 'off'].includes(value)) return false
    throw new Error(`must be true or false, not "${value}"`)
  })

/** A comma-separated list. `check` returns what is wrong with a list. */
export const list = (
  name: string,
  options: { default?: string[]; check?: (items: string[]) => string | undefined } & Documentation,
) =>
  setting<string[]>(name, { default: [], ...options }, (value) => {
    const items = value
      .split(',')
      .map((one) => one.trim())
      .filter((one) => one !== '')
    const fault = options.check?.(items)
    if (fault !== undefined) throw new Error(fault)
    return items
  })

export const url = (name: string, options: Documentation) =>
  setting<string | undefined>(name, { default: undefined, ...options }, (value) => {
    if (!URL.canParse(value) || !/^https?:$/.test(new URL(value).protocol)) {
      throw new Error('must be an http or https URL')
    }
    return value.replace(/\/+$/, '')
  })

/** Cloud providers serve credentials of the machine at this address. */
const METADATA_ADDRESS = '169.254.169.254'

/** An IPv4 address that is valid on one link only (RFC 3927), without the parts of the block that are reserved. */
export const linkLocalAddress = (name: string, options: { default: string } & Documentation) =>
  setting(name, options, (value) => {
    const [, third = '', fourth = ''] = /^169\.254\.(0|[1-9]\d{0,2})\.(0|[1-9]\d{0,2})$/.exec(value) ?? []
    const isUsable = third !== '' && Number(third) >= 1 && Number(third) <= 254 && Number(fourth) <= 255
    if (!isUsable || value === METADATA_ADDRESS) {
      throw new Error(
        `must be an address from 169.254.1.0 to 169.254.254.255 other than ${METADATA_ADDRESS}, not "${value}"`,
      )
    }
    return value
  })

/** An empty value means the default, because that is what people mean by `VAR= command`. */
function setting<T>(name: string, options: { default: T } & Documentation, parse: (text: string) => T): Setting<T> {
  return {
    name,
    description: options.description,
    defaultText: options.defaultText ?? String(options.default ?? ''),
    internal: options.internal ?? false,
    read: (value) => (value === undefined || value === '' ? options.default : parse(value)),
  }
}

type Values<T extends Record<string, Setting<unknown>>> = { [K in keyof T]: T[K] extends Setting<infer V> ? V : never }

export function readConfig<T extends Record<string, Setting<unknown>>>(settings: T, env: Env): Values<T> {
  const faults: string[] = []
  const values = Object.entries(settings).map(([key, one]) => {
    try {
      return [key, one.read(env[one.name])]
    } catch (error) {
      faults.push(`  ${one.name} ${(error as Error).message}`)
      return [key, undefined]
    }
  })
  if (faults.length > 0) throw new ConfigError(`these settings are invalid:\n${faults.join('\n')}`)
  return Object.fromEntries(values) as Values<T>
}
