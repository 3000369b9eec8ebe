import { setTimeout as delay } from 'node:timers/promises'

const LIMIT_MS = 60_000
const POLL_MS = 10

/**
 * For tests: polls `condition` until it returns something truthy, and returns that. Fails after `limitMs` with an error
 * that names what was awaited: `what`, or the source text of the condition.
 */
export async function until<Value>(
  condition: () => Value | Promise<Value>,
  what = condition.toString(),
  limitMs = LIMIT_MS,
): Promise<Truthy<Value>> {
  for (const deadline = Date.now() + limitMs; ; await delay(POLL_MS)) {
    const value = await condition()
    if (value) return value as Truthy<Value>
    if (Date.now() > deadline) throw new Error(`timed out after ${limitMs} ms waiting until ${what}`)
  }
}

type Truthy<Value> = Exclude<Value, false | 0 | '' | null | undefined>
