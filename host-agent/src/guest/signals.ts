/**
 * Listens to what a guest asks for itself (guest-streams.ts), for as long as its body lives: a stream that breaks, with
 * the session or alone, is opened again after a moment. The guest keeps what it wants until we say that we will act.
 */
import { setTimeout as delay } from 'node:timers/promises'
import { cleanSelfReason, GUEST_SIGNAL_MAX_BYTES, GuestSignal, type HostVmSignal } from '@warren/protocol'
import { Type } from 'typebox'
import { Value } from 'typebox/value'
import { type GuestChannel, openGuestStream } from './channel.ts'
import { askGuest, GuestError } from './client.ts'

const AGAIN_MS = 1_000
const ACK_LIMIT_MS = 5_000

export async function listenToSignals(
  open: () => Promise<GuestChannel>,
  take: (signal: HostVmSignal) => Promise<void>,
  ended: AbortSignal,
): Promise<void> {
  while (!ended.aborted) {
    try {
      await listenOnce(await open(), take, ended)
    } catch {
      // The guest is busy, paused or gone; whoever watches its QEMU knows which.
    }
    await delay(AGAIN_MS, undefined, { signal: ended, ref: false }).catch(() => {}) // Ended, seen above.
  }
}

async function listenOnce(
  { session }: GuestChannel,
  take: (signal: HostVmSignal) => Promise<void>,
  ended: AbortSignal,
): Promise<void> {
  const stream = openGuestStream(session, { ':method': 'GET', ':path': '/signals' }, { signal: ended })
  let held = ''
  for await (const chunk of stream) {
    held += (chunk as Buffer).toString('utf8')
    if (held.length > GUEST_SIGNAL_MAX_BYTES) throw new GuestError('the guest asks for something without end')
    const lines = held.split('\n')
    held = lines.pop() ?? ''
    for (const line of lines) {
      const signal: unknown = JSON.parse(line)
      if (!Value.Check(GuestSignal, signal)) throw new GuestError('the guest asks for nonsense')
      const reason = cleanSelfReason(signal.reason)
      await take({ action: signal.action, ...(reason === undefined ? {} : { reason }) })
      const ack = { method: 'POST', path: '/signals/ack', body: { id: signal.id }, answer: Type.Object({}) } as const
      await askGuest(session, ack, AbortSignal.any([ended, AbortSignal.timeout(ACK_LIMIT_MS)]))
    }
  }
}
