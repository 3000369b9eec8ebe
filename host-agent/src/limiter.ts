/** Lets a few in at a time, in the order they came: more restores at once than cores make all of them slower. */
export function createLimiter(width: number): <T>(work: () => Promise<T>, signal?: AbortSignal) => Promise<T> {
  let inside = 0
  const waiting: (() => void)[] = []

  const enter = async (signal?: AbortSignal): Promise<void> => {
    while (inside >= width) {
      await new Promise<void>((resolve) => waiting.push(resolve))
      if (signal?.aborted) {
        waiting.shift()?.()
        signal.throwIfAborted()
      }
    }
    inside++
  }

  return async (work, signal) => {
    await enter(signal)
    try {
      return await work()
    } finally {
      inside--
      waiting.shift()?.()
    }
  }
}
