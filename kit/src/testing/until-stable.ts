import { passTime } from './pass-time.ts'
import { until } from './until.ts'

/** Long enough for whatever still moves to be noticed on a busy machine. */
const STABLE_MS = 200

/** For tests of back-pressure: waits until the value has not changed for a while, and returns it. */
export async function untilStable(read: () => number, what: string): Promise<number> {
  let seen = Number.NaN
  await until(async () => {
    const isStable = read() === seen
    seen = read()
    if (!isStable) await passTime(STABLE_MS, 'whether it changes meanwhile is the question')
    return isStable
  }, what)
  return seen
}
