/**
 * Receives the reports of a guest about its mounts for as long as its VM runs. A stream that breaks, alone or with its session, is
 * opened again after a pause, and begins with the current state.
 *
 * Each line has the complete state, so only the newest is looked at, and at most one per REPORT_INTERVAL_MS. The stream is not
 * read meanwhile, and its window holds back a guest that sends any number of them.
 */
import { setTimeout as delay } from 'node:timers/promises'
import { type GuestMount, GuestMounts } from '@warren/protocol'
import { Value } from 'typebox/value'
import { GuestError } from '../guest/call-guest.ts'
import { type GuestChannel, openGuestStream } from '../guest/channel.ts'

const RECONNECT_DELAY_MS = 1_000
const REPORT_INTERVAL_MS = 100
/** Sixteen mounts with a hundred problems each are less. */
const LINE_MAX_BYTES = 4 * 1024 * 1024

export async function watchGuestMounts(
  open: () => Promise<GuestChannel>,
  onReport: (mounts: readonly GuestMount[]) => void,
  ended: AbortSignal,
): Promise<void> {
  while (!ended.aborted) {
    try {
      await watchOnce(await open(), onReport, ended)
    } catch {
      // The guest is busy, paused or gone. The watch of its QEMU process finds out which.
    }
    await delay(RECONNECT_DELAY_MS, undefined, { signal: ended, ref: false }).catch(() => {}) // The loop condition checks `ended`.
  }
}

async function watchOnce(
  { session }: GuestChannel,
  onReport: (mounts: readonly GuestMount[]) => void,
  ended: AbortSignal,
): Promise<void> {
  const stream = openGuestStream(session, { ':method': 'GET', ':path': '/mounts/watch' }, { signal: ended })
  stream.setEncoding('utf8')
  let held = ''
  for await (const chunk of stream) {
    held += chunk as string
    if (held.length > LINE_MAX_BYTES) throw new GuestError('a report of the guest about its mounts is too long')
    const lines = held.split('\n')
    held = lines.pop() ?? ''
    const newest = lines.at(-1)
    if (newest === undefined) continue
    const report: unknown = JSON.parse(newest)
    if (!Value.Check(GuestMounts, report)) throw new GuestError('the guest sent an invalid report about its mounts')
    onReport(report.mounts)
    await delay(REPORT_INTERVAL_MS, undefined, { signal: ended, ref: false })
  }
}
