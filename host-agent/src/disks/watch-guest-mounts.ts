/**
 * Receives the reports of a guest about its mounts for as long as its VM runs. A stream that breaks, alone or with its session, is
 * opened again after a pause, and begins with the current state.
 *
 * The guest is not trusted, and its host has others. Each line has the complete state, so only the newest is parsed, and in each
 * INTERVAL_MS at most INTERVAL_BYTES are read, every chunk counted as at least CHUNK_BYTES. Then the stream is not read, and its
 * window holds back a guest that sends more, so that the work for one guest is the same whatever it sends.
 */
import { setTimeout as delay } from 'node:timers/promises'
import { type GuestMount, GuestMounts } from '@warren/protocol'
import { Value } from 'typebox/value'
import { GuestError } from '../guest/call-guest.ts'
import { type GuestChannel, openGuestStream } from '../guest/channel.ts'

const RECONNECT_DELAY_MS = 1_000
const INTERVAL_MS = 250
const INTERVAL_BYTES = 64 * 1024
/** A chunk costs about as much time as reading so many bytes. */
const CHUNK_BYTES = 512
/** Sixteen mounts with eight names and conflicts each are less; agents of earlier versions send more if files conflict. */
const LINE_MAX_BYTES = 512 * 1024
const PART_BYTES = 64
const NEWLINE = 0x0a

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
  try {
    await readReports(stream, onReport, ended)
  } finally {
    stream.close()
  }
}

async function readReports(
  stream: AsyncIterable<Buffer>,
  onReport: (mounts: readonly GuestMount[]) => void,
  ended: AbortSignal,
): Promise<void> {
  const line = new NewestLine()
  let budget = INTERVAL_BYTES
  let intervalAt = performance.now()
  for await (const chunk of stream) {
    line.add(chunk)
    budget -= Math.max(chunk.length, CHUNK_BYTES)
    const hasWaited = performance.now() - intervalAt >= INTERVAL_MS
    if (budget > 0 && !hasWaited && !line.isComplete) continue
    const text = line.take()
    if (text !== undefined) onReport(parseReport(text))
    await delay(Math.max(0, intervalAt + INTERVAL_MS - performance.now()), undefined, { signal: ended, ref: false })
    intervalAt = performance.now()
    budget = INTERVAL_BYTES
  }
}

function parseReport(text: string): readonly GuestMount[] {
  const report: unknown = JSON.parse(text)
  if (!Value.Check(GuestMounts, report)) throw new GuestError('the guest sent an invalid report about its mounts')
  return report.mounts
}

/** Keeps the newest line and the begin of the next one. Every byte is looked at once. */
class NewestLine {
  #parts: Buffer[] = []
  #bytes = 0
  #complete: Buffer[] | undefined

  get isComplete(): boolean {
    return this.#complete !== undefined
  }

  add(chunk: Buffer): void {
    const last = chunk.lastIndexOf(NEWLINE)
    if (last === -1) {
      this.#append(chunk)
      return
    }
    const before = last === 0 ? -1 : chunk.lastIndexOf(NEWLINE, last - 1)
    if (before !== -1) this.#clear()
    this.#append(chunk.subarray(before + 1, last))
    this.#complete = this.#parts
    this.#clear()
    this.#append(chunk.subarray(last + 1))
  }

  take(): string | undefined {
    const text = this.#complete && Buffer.concat(this.#complete).toString()
    this.#complete = undefined
    return text
  }

  #append(part: Buffer): void {
    // A part costs memory even if it is short.
    this.#bytes += Math.max(part.length, PART_BYTES)
    if (this.#bytes > LINE_MAX_BYTES) throw new GuestError('a report of the guest about its mounts is too long')
    if (part.length > 0) this.#parts.push(part)
  }

  #clear(): void {
    this.#parts = []
    this.#bytes = 0
  }
}
