/**
 * Prepares things one at a time while the machine is idle. Whatever yields to a request is tried again when the machine is
 * idle again; whatever fails is not tried again until the next start.
 */
import { setTimeout as delay } from 'node:timers/promises'
import { Yielded } from './bases/builds.ts'

const POLL_MS = 5_000

type Steps<T> = {
  /** Why it cannot be prepared now; undefined if it can. */
  findObstacle: (one: T) => Promise<string | undefined>
  prepare: (one: T) => Promise<void>
  onFailure: (one: T, error: unknown) => void
  onWait?: (why: string) => void
  signal: AbortSignal
  pollMs?: number
}

/** Settles when all are prepared or have failed, or `signal` is aborted. */
export async function prepareWhenIdle<T>(all: readonly T[], steps: Steps<T>): Promise<void> {
  const { findObstacle, prepare, onFailure, onWait, signal, pollMs = POLL_MS } = steps
  const left = new Set(all)
  let reported: string | undefined
  while (left.size > 0 && !signal.aborted) {
    const next = await choose(left, findObstacle)
    if (!('one' in next)) {
      if (next.why !== reported) onWait?.(next.why)
      reported = next.why
      await delay(pollMs, undefined, { ref: false, signal }).catch(() => {}) // Aborted: the loop ends.
      continue
    }
    try {
      await prepare(next.one)
      left.delete(next.one)
    } catch (error) {
      if (error instanceof Yielded) continue
      left.delete(next.one)
      if (!signal.aborted) onFailure(next.one, error)
    }
  }
}

/** The first that can be prepared: a small one may fit where a large one does not. */
async function choose<T>(
  left: ReadonlySet<T>,
  findObstacle: Steps<T>['findObstacle'],
): Promise<{ one: T } | { why: string }> {
  let why = ''
  for (const one of left) {
    const obstacle = await findObstacle(one)
    if (obstacle === undefined) return { one }
    why = obstacle
  }
  return { why }
}
