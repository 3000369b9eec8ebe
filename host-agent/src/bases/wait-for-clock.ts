/**
 * Waits until the guest uses the clock source that it keeps. Linux measures the frequency of the TSC for a second after it has
 * booted, again if something disturbs that, and calls it `tsc-early` until then. On a fast machine the guest agent answers
 * earlier. Clones of a base that was saved at that moment would each measure, while their clocks are set.
 */
import type { ClientHttp2Session } from 'node:http2'
import { setTimeout as delay } from 'node:timers/promises'
import { GuestReady } from '@warren/protocol'
import { callGuest } from '../guest/call-guest.ts'

const EXPECTED = ['tsc', 'kvm-clock']
const UNDECIDED = 'tsc-early'
/** Many measurements, on a machine that is busy. */
const LIMIT_MS = 60_000
const POLL_MS = 50

export async function waitForClock(
  session: ClientHttp2Session,
  signal: AbortSignal,
  limitMs = LIMIT_MS,
): Promise<GuestReady> {
  const deadline = performance.now() + limitMs
  for (;;) {
    const ready = await callGuest(session, { method: 'GET', path: '/ready', response: GuestReady }, signal)
    if (EXPECTED.includes(ready.clocksource)) return ready
    if (ready.clocksource !== UNDECIDED || performance.now() > deadline) {
      throw new Error(`the guest uses the clock source ${ready.clocksource}, expected ${EXPECTED.join(' or ')}`)
    }
    await delay(POLL_MS, undefined, { signal })
  }
}
