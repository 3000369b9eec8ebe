/** Settings come from the environment, are parsed once at start, and every wrong one is named in one message. */

export class ConfigError extends Error {
  override name = 'ConfigError'
}

type Env = Record<string, string | undefined>
type Setting<T> = { name: string; read: (text: string | undefined) => T }

/** An empty value is the same as none: that is what `VAR= command` means to people. */
const setting = <T>(name: string, fallback: T, parse: (text: string) => T): Setting<T> => ({
  name,
  read: (text) => (text === undefined || text === '' ? fallback : parse(text)),
})

export const text = <T extends string | undefined>(name: string, fallback: T) =>
  setting<string | T>(name, fallback, (value) => value)

export const integer = (name: string, fallback: number, range: { min: number; max: number }) =>
  setting(name, fallback, (value) => {
    const number = Number(value)
    if (!/^-?\d+$/.test(value) || number < range.min || number > range.max) {
      throw new Error(`must be a whole number from ${range.min} to ${range.max}, not "${value}"`)
    }
    return number
  })

export const choice = <const T extends string>(name: string, fallback: T, choices: readonly T[]) =>
  setting<T>(name, fallback, (value) => {
    const found = choices.find((one) => one === value)
    if (found === undefined) throw new Error(`must be one of ${choices.join(', ')}, not "${value}"`)
    return found
  })

export const flag = (name: string, fallback: boolean) =>
  setting(name, fallback, (value) => {
    if (['1', 'true', 'yes', 'on'].includes(value)) return true
    if (['0', 'false', 'no', 'off'].includes(value)) return false
    throw new Error(`must be true or false, not "${value}"`)
  })

export const list = (name: string) =>
  setting<string[]>(name, [], (value) =>
    value
      .split(',')
      .map((one) => one.trim())
      .filter((one) => one !== ''),
  )

export const url = (name: string) =>
  setting<string | undefined>(name, undefined, (value) => {
    if (!URL.canParse(value) || !/^https?:$/.test(new URL(value).protocol)) {
      throw new Error('must be an http or https URL')
    }
    return value.replace(/\/+$/, '')
  })

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
  if (faults.length > 0) throw new ConfigError(`these settings cannot be used:\n${faults.join('\n')}`)
  return Object.fromEntries(values) as Values<T>
}
