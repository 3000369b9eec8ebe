import { setTimeout as delay } from 'node:timers/promises'
import { scaleLimit } from './slowness.ts'

const LIMIT_MS = 60_000
const POLL_MS = 10

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
  for (const deadline = Date.now() + scaledMs; ; await delay(POLL_MS)) {
    const value = await condition()
    if (value) return value as Truthy<Value>
    if (Date.now() > deadline) throw new Error(`timed out after ${scaledMs} ms waiting until ${what}`)
  }
}

type Truthy<Value> = Exclude<Value, false | 0 | '' | null | undefined>
