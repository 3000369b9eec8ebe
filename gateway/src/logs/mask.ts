/**
 * Hides the values of environment variables in logs and reasons. Each line of a value is hidden as well, because logs are
 * written line by line. Short values are left alone: hiding every `1` or `true` would make a log unreadable and hide nothing.
 */
import type { Secrets } from '../uploads/settings.ts'

export type Mask = { hide(text: string): string; longest: number }

const HIDDEN = '***'
const SECRET_MIN = 4

export function createMask({ runEnvs, buildVars }: Secrets): Mask {
  const values = [...Object.values(runEnvs ?? {}), ...Object.values(buildVars ?? {})]
  const parts = values.flatMap((value) => [value, ...value.split(/\r?\n/)]).map((part) => part.trim())
  // The longest first, so that no part of a longer value remains.
  const secrets = [...new Set(parts)].filter((part) => part.length >= SECRET_MIN).sort((a, b) => b.length - a.length)
  return {
    hide: (text) => secrets.reduce((hidden, secret) => hidden.replaceAll(secret, HIDDEN), text),
    longest: secrets[0]?.length ?? 0,
  }
}
