/** Environment variables of sandboxes and processes. */
import { type Static, Type } from 'typebox'
import { utf8Length } from './utf8.ts'

export const ENVS_MAX_ENTRIES = 64
export const ENV_VALUE_MAX_BYTES = 4 * 1024
/** Limit of all names and values together. */
export const ENVS_MAX_BYTES = 64 * 1024

const ENV_NAME = '^[A-Za-z_][A-Za-z0-9_]*$'
const envName = new RegExp(ENV_NAME)

/**
 * `additionalProperties: false` makes the key pattern binding: a Record alone emits only `patternProperties`, which
 * accepts any other key.
 */
export const Envs = Type.Record(Type.String({ pattern: ENV_NAME }), Type.String(), {
  additionalProperties: false,
  maxProperties: ENVS_MAX_ENTRIES,
  description: 'Environment variables: at most 64 entries, 4 KiB per value, 64 KiB in total. Values are write-only.',
})
export type Envs = Static<typeof Envs>

/** An error text, or undefined. It names the variable but never contains its value. */
export function checkEnvs(envs: Readonly<Record<string, string>>): string | undefined {
  const entries = Object.entries(envs)
  if (entries.length > ENVS_MAX_ENTRIES) return `must not have more than ${ENVS_MAX_ENTRIES} entries`
  let total = 0
  for (const [name, value] of entries) {
    if (!envName.test(name)) return `${JSON.stringify(name)} is not a name: letters, digits and _, no digit first`
    if (value.includes('\0')) return `${name} must not contain a NUL character`
    const valueBytes = utf8Length(value)
    if (valueBytes > ENV_VALUE_MAX_BYTES) return `${name} must not be longer than ${ENV_VALUE_MAX_BYTES} bytes`
    total += name.length + valueBytes
  }
  if (total > ENVS_MAX_BYTES) return `must not take more than ${ENVS_MAX_BYTES} bytes in all`
  return undefined
}
