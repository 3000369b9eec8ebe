/**
 * Receives the self-signals of a guest (protocol/src/guest-streams.ts) for as long as its VM runs. A stream that breaks,
 * alone or with its session, is opened again after a pause. The guest stores a signal until it is acknowledged.
 */
import { setTimeout as delay } from 'node:timers/promises'
import { GUEST_SIGNAL_MAX_BYTES, GuestSignal, type HostVmSignal, sanitizeSelfReason } from '@warren/protocol'
import { Type } from 'typebox'
import { Value } from 'typebox/value'
import { callGuest, GuestError } from './call-guest.ts'
import { type GuestChannel, openGuestStream } from './channel.ts'

const RECONNECT_DELAY_MS = 1_000
const ACK_LIMIT_MS = 5_000

export async function listenToSignals(
  open: () => Promise<GuestChannel>,
  onSignal: (signal: HostVmSignal) => Promise<void>,
  ended: AbortSignal,
): Promise<void> {
  while (!ended.aborted) {
    try {
      await listenOnce(await open(), onSignal, ended)
    } catch {
      // The guest is busy, paused or gone. The watch of its QEMU process finds out which.
    }
    await delay(RECONNECT_DELAY_MS, undefined, { signal: ended, ref: false }).catch(() => {}) // The loop condition checks `ended`.
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
      if (!Value.Check(GuestSignal, signal)) throw new GuestError('the guest sent an invalid self-signal')
      const reason = sanitizeSelfReason(signal.reason)
      await onSignal({ action: signal.action, ...(reason === undefined ? {} : { reason }) })
      const ack = { method: 'POST', path: '/signals/ack', body: { id: signal.id }, response: Type.Object({}) } as const
      await callGuest(session, ack, AbortSignal.any([ended, AbortSignal.timeout(ACK_LIMIT_MS)]))
    }
  }
}
