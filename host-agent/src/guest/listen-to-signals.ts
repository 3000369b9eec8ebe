/**
 * Receives the self-signals of a guest (protocol/src/guest-streams.ts) for as long as its VM runs. A stream that breaks,
 * alone or with its session, is opened again after a pause. The guest stores a signal until it is acknowledged.
 *
 * Each signal costs a durable write, and our guest agent sends the next one after the acknowledgement. A guest that is not
 * ours may send any number of them. So at most one per SIGNAL_INTERVAL_MS is recorded; the stream is not read meanwhile, and
 * its window holds the guest back. One that repeats what is recorded already is acknowledged without a write.
 */
import { setTimeout as delay } from 'node:timers/promises'
import { matches } from '@warren/kit/matches'
import { GUEST_SIGNAL_MAX_BYTES, GuestSignal, type HostVmSignal, sanitizeSelfReason } from '@warren/protocol'
import { Type } from 'typebox'
import { callGuest, GuestError } from './call-guest.ts'
import { type GuestChannel, openGuestStream } from './channel.ts'

const RECONNECT_DELAY_MS = 1_000
/** The first signal is recorded at once. */
const SIGNAL_INTERVAL_MS = 1_000
const ACK_LIMIT_MS = 5_000

export async function listenToSignals(
  open: () => Promise<GuestChannel>,
  onSignal: (signal: HostVmSignal) => Promise<void>,
  ended: AbortSignal,
): Promise<void> {
  const record = limitSignals(onSignal, ended)
  while (!ended.aborted) {
    try {
      await listenOnce(await open(), record, ended)
    } catch {
      // The guest is busy, paused or gone. The watch of its QEMU process finds out which.
    }
    await delay(RECONNECT_DELAY_MS, undefined, { signal: ended, ref: false }).catch(() => {}) // The loop condition checks `ended`.
  }
}

/** Across connections, so that a guest gains nothing by closing them. */
function limitSignals(
  onSignal: (signal: HostVmSignal) => Promise<void>,
  ended: AbortSignal,
): (signal: HostVmSignal) => Promise<void> {
  let nextAt = Number.NEGATIVE_INFINITY
  let recorded: HostVmSignal | undefined
  return async (signal) => {
    const waitMs = nextAt - performance.now()
    if (waitMs > 0) await delay(waitMs, undefined, { signal: ended, ref: false })
    nextAt = performance.now() + SIGNAL_INTERVAL_MS
    if (recorded?.action === signal.action && recorded.reason === signal.reason) return
    await onSignal(signal)
    recorded = signal
  }
}

async function listenOnce(
  { session }: GuestChannel,
  onSignal: (signal: HostVmSignal) => Promise<void>,
  ended: AbortSignal,
): Promise<void> {
  const stream = openGuestStream(session, { ':method': 'GET', ':path': '/signals' }, { signal: ended })
  let held = ''
  for await (const chunk of stream) {
    held += (chunk as Buffer).toString('utf8')
    if (held.length > GUEST_SIGNAL_MAX_BYTES) throw new GuestError('a self-signal of the guest is too long')
    const lines = held.split('\n')
    held = lines.pop() ?? ''
    for (const line of lines) {
      const signal: unknown = JSON.parse(line)
      if (!matches(GuestSignal, signal)) throw new GuestError('the guest sent an invalid self-signal')
      const reason = sanitizeSelfReason(signal.reason)
      await onSignal({ action: signal.action, ...(reason === undefined ? {} : { reason }) })
      const ack = { method: 'POST', path: '/signals/ack', body: { id: signal.id }, response: Type.Object({}) } as const
      await callGuest(session, ack, AbortSignal.any([ended, AbortSignal.timeout(ACK_LIMIT_MS)]))
    }
  }
}
