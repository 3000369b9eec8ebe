/**
 * Limits how much work runs at once; the rest waits in the order it came. More restores at once than there are cores make
 * all of them slower.
 */
export type Limiter = <T>(work: () => Promise<T>, signal?: AbortSignal) => Promise<T>

export function createLimiter(limit: number): Limiter {
  let running = 0
  const waiting: (() => void)[] = []

  const enter = async (signal?: AbortSignal): Promise<void> => {
    while (running >= limit) {
      await new Promise<void>((resolve) => waiting.push(resolve))
      if (signal?.aborted) {
        // This turn is not used, so the next one in line gets it.
        waiting.shift()?.()
        signal.throwIfAborted()
      }
    }
    running++
  }

  return async (work, signal) => {
    await enter(signal)
    try {
      return await work()
    } finally {
      running--
      waiting.shift()?.()
    }
  }
}
