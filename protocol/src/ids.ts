/** Ids: a prefix that names the kind, and a ULID. They sort by time and are safe in URLs and host names. */
import { type Static, Type } from 'typebox'

const ULID = '[0-9A-HJKMNP-TV-Z]{26}'

export const SANDBOX_ID_PATTERN = `^sb-${ULID}$`
export const SandboxId = Type.String({ pattern: SANDBOX_ID_PATTERN, description: '`sb-<ulid>`' })
export const NetworkId = Type.String({ pattern: `^net-${ULID}$`, description: '`net-<ulid>`' })
export const DiskId = Type.String({ pattern: `^disk_${ULID}$`, description: '`disk_<ulid>`' })
export const MountId = Type.String({ pattern: `^mnt_${ULID}$`, description: '`mnt_<ulid>`' })
export const TemplateId = Type.String({ pattern: `^tpl_${ULID}$`, description: '`tpl_<ulid>`' })
export const UserId = Type.String({ pattern: '^usr_[0-9A-Za-z]+$', description: '`usr_<id>`' })
export const ProcessId = Type.String({ pattern: '^proc_[0-9A-Za-z]+$', description: '`proc_<opaque>`' })
export const WebhookEndpointId = Type.String({
  pattern: '^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$',
  description: 'UUID',
})

/** Can be used instead of the id of a disk or a network. Unique per user. */
export const ResourceName = Type.String({
  pattern: '^[a-z0-9][a-z0-9-]{0,62}$',
  description: '1 to 63 lower case letters, digits and dashes, not beginning with a dash.',
})

/** RFC 3339 in UTC, with milliseconds; in process records with microseconds. */
export const Timestamp = Type.String({
  pattern: '^\\d{4}-\\d{2}-\\d{2}T\\d{2}:\\d{2}:\\d{2}\\.(\\d{3}|\\d{6})Z$',
  description: 'RFC 3339, UTC',
})
export type Timestamp = Static<typeof Timestamp>

export const ID_PREFIX = {
  sandbox: 'sb-',
  network: 'net-',
  disk: 'disk_',
  mount: 'mnt_',
  template: 'tpl_',
  user: 'usr_',
  apiKey: 'key_',
  auditEntry: 'aud_',
} as const

/**
 * Any text is a valid path parameter: an id of the wrong form is a missing resource (the same 404), never a validation
 * error.
 */
export const SandboxParams = Type.Object({ id: Type.String({ description: 'Sandbox id' }) })

const ALPHABET = '0123456789ABCDEFGHJKMNPQRSTVWXYZ'

const RANDOM_BITS = 80
const STEP_BITS = 40
let last = { ms: 0, random: 0n }

/**
 * 48 bits of milliseconds, 80 random bits, Crockford base 32. Within a process, each is greater than those before it, also in
 * one millisecond and if the clock is set back: a list that is sorted by id shows calls in their order. The steps in between
 * are random, so that an id does not tell the next one.
 */
export function ulid(nowMs: number = Math.max(Date.now(), last.ms)): string {
  last =
    nowMs === last.ms
      ? { ms: nowMs, random: last.random + 1n + randomBits(STEP_BITS) }
      : { ms: nowMs, random: randomBits(RANDOM_BITS - 1) } // One bit less: adding steps does not overflow.
  return encode(BigInt(last.ms), 10) + encode(last.random, 16)
}

const randomBits = (bits: number): bigint =>
  crypto.getRandomValues(new BigUint64Array(2)).reduce((all, part) => (all << 64n) | part, 0n) &
  ((1n << BigInt(bits)) - 1n)

function encode(value: bigint, length: number): string {
  let text = ''
  for (let rest = value; text.length < length; rest >>= 5n) text = ALPHABET[Number(rest & 31n)] + text
  return text
}

/** When an id was chosen, in milliseconds. NaN if it does not end with a ULID. */
export function idTime(id: string): number {
  const digits = [...id.slice(-26).padEnd(26).slice(0, 10)].map((digit) => ALPHABET.indexOf(digit))
  return digits.includes(-1) ? Number.NaN : digits.reduce((ms, digit) => ms * 32 + digit, 0)
}

export const newId = (kind: keyof typeof ID_PREFIX, nowMs?: number): string => ID_PREFIX[kind] + ulid(nowMs)
