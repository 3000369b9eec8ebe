/**
 * Returns a part of the output of a process to a client that polls: what is available, or what arrives within a while.
 */
import { setTimeout as delay } from 'node:timers/promises'
import type { SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { openProcessOutput } from '../guest/process-output.ts'

const TEXT_MAX_BYTES = 64 * 1024
/** Output arrives in bursts; what follows within this time belongs to the same result. */
const QUIET_MS = 100

export type FollowResult = {
  /** Both streams in order of arrival; bytes that are not UTF-8 are replaced. */
  output: string
  /** The `after` of the next call. */
  seq: number
  ended: boolean
  exit_code?: number
  signal?: string
  error?: string
}

export async function followProcess(
  deps: Deps,
  sandbox: SandboxRow,
  processId: string,
  { after, waitMs }: { after: number; waitMs: number },
  signal: AbortSignal,
): Promise<FollowResult> {
  const done = new AbortController()
  const frames = await openProcessOutput(deps, sandbox, processId, after, AbortSignal.any([signal, done.signal]))
  const decoder = new TextDecoder()
  const result: FollowResult = { output: '', seq: after, ended: false }
  let bytes = 0
  let next = frames.next()
  try {
    while (bytes < TEXT_MAX_BYTES) {
      const step = await within(next, bytes === 0 ? waitMs : QUIET_MS, done.signal)
      if (!step || step.done) break
      if (step.value.type !== 'data') {
        const { type: _, ...end } = step.value
        return { ...result, ...end, ended: true }
      }
      const data = Buffer.from(step.value.data_base64, 'base64')
      bytes += data.length
      result.output += decoder.decode(data, { stream: true })
      result.seq = step.value.seq
      next = frames.next()
    }
    return result
  } finally {
    done.abort()
    next.catch(() => {}) // The pending read is aborted.
  }
}

/** Undefined when nothing arrived in time. */
async function within<T>(work: Promise<T>, ms: number, signal: AbortSignal): Promise<T | undefined> {
  const settled = new AbortController()
  const timer = delay(ms, undefined, { signal: AbortSignal.any([settled.signal, signal]) }).catch(() => undefined)
  try {
    return await Promise.race([work, timer])
  } finally {
    settled.abort()
  }
}
