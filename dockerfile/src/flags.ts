/** The `--name=value` flags of an instruction, checked against those that it has. */
import { Problem, quote } from './errors.ts'

type FlagKind = 'text' | 'list' | 'switch'

export type Flags<Name extends string> = {
  text(name: Name): string | undefined
  list(name: Name): string[]
  /** Undefined if the flag is absent. */
  isOn(name: Name): boolean | undefined
}

export function parseFlags<Name extends string>(flags: string[], known: Record<Name, FlagKind>): Flags<Name> {
  const found = new Map<string, string[]>()
  for (const flag of flags) {
    const [name, value] = splitFlag(flag)
    // A plain lookup would also find properties that every object has.
    const kind = Object.hasOwn(known, name) ? known[name as Name] : undefined
    if (kind === undefined) throw unknownFlag(name, Object.keys(known))
    if (found.has(name) && kind !== 'list') throw new Problem(`--${name} is repeated; remove one`)
    const values = found.get(name) ?? []
    values.push(kind === 'switch' ? parseSwitch(name, value) : getValue(name, value))
    found.set(name, values)
  }
  return {
    text: (name) => found.get(name)?.[0],
    list: (name) => found.get(name) ?? [],
    isOn: (name) => (found.has(name) ? found.get(name)?.[0] === 'true' : undefined),
  }
}

function splitFlag(flag: string): [name: string, value: string | undefined] {
  const equals = flag.indexOf('=')
  return equals < 0 ? [flag.slice(2), undefined] : [flag.slice(2, equals), flag.slice(equals + 1)]
}

function getValue(name: string, value: string | undefined): string {
  if (value === undefined) throw new Problem(`--${name} needs a value: --${name}=…`)
  return value
}

function parseSwitch(name: string, value = 'true'): string {
  if (!/^(true|false)$/i.test(value)) throw new Problem(`--${name} is true or false, not ${quote(value)}`)
  return value.toLowerCase()
}

function unknownFlag(name: string, known: string[]): Problem {
  const hint =
    known.length === 0 ? 'this instruction has no flags' : `known are ${known.map((one) => `--${one}`).join(', ')}`
  return new Problem(`unknown flag ${quote(`--${name}`)}; ${hint}`)
}
