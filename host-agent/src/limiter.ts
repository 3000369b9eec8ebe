/**
 * Limits how much work runs at once; the rest waits in the order it came. More restores at once than there are cores make
 * all of them slower. Work that is aborted while it waits fails at once.
 */
import { span } from '@warren/kit/span'

export type Limiter = <T>(work: () => Promise<T>, signal?: AbortSignal) => Promise<T>

export function createLimiter(limit: number): Limiter {
  let running = 0
  const waiting = new Set<() => void>()

  const enter = async (signal?: AbortSignal): Promise<void> => {
    signal?.throwIfAborted()
    if (running < limit) running++
    else await span('wait for a turn', () => waitForTurn(waiting, signal))
  }

  /** Hands the turn to the first in line, if there is one, so that new work cannot take it. */
  const leave = (): void => {
    const [next] = waiting
    if (next) next()
    else running--
  }

  return async (work, signal) => {
    await enter(signal)
    try {
      return await work()
    } finally {
      leave()
    }
  }
}

function waitForTurn(waiting: Set<() => void>, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const stopWaiting = () => {
      waiting.delete(begin)
      signal?.removeEventListener('abort', abort)
    }
    const begin = () => {
      stopWaiting()
      resolve()
    }
    const abort = () => {
      stopWaiting()
      reject(signal!.reason)
    }
    waiting.add(begin)
    signal?.addEventListener('abort', abort)
  })
}
