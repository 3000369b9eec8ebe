import { setTimeout as delay } from 'node:timers/promises'
import { scaleLimit } from './slowness.ts'

const LIMIT_MS = 60_000
const POLL_MS = 10
/** For a condition that was called just before the limit. */
const GRACE_MS = 1_000
const LATE = Symbol('late')

/**
 * For tests: polls `condition` until it returns something truthy, and returns that. Fails after `limitMs`, longer on a slow
 * machine, with an error that names what was awaited: `what`, or the source text of the condition.
 */
export async function until<Value>(
  condition: () => Value | Promise<Value>,
  what = condition.toString(),
  limitMs = LIMIT_MS,
): Promise<Truthy<Value>> {
  const scaledMs = scaleLimit(limitMs)
  const deadline = Date.now() + scaledMs
  const finished = new AbortController()
  // A condition that never settles must not outlive the limit either.
  const late = delay(scaledMs + GRACE_MS, LATE, { signal: finished.signal }).catch(() => LATE)
  try {
    for (; ; await delay(POLL_MS)) {
      const value = await Promise.race([condition(), late])
      if (value === LATE) break
      if (value) return value as Truthy<Value>
      if (Date.now() > deadline) break
    }
  } finally {
    finished.abort()
  }
  throw new Error(`timed out after ${scaledMs} ms waiting until ${what}`)
}

type Truthy<Value> = Exclude<Value, false | 0 | '' | null | undefined>
