/**
 * Stops waiting for `work` when the signal is aborted. The work itself continues and its outcome is ignored, so it must
 * be safe to leave alone: a thread that only reads, or a build that serves the next caller.
 */
export function abortable<T>(work: Promise<T>, signal: AbortSignal): Promise<T> {
  return new Promise((resolve, reject) => {
    if (signal.aborted) {
      work.catch(() => {})
      return reject(signal.reason)
    }
    const stop = () => reject(signal.reason)
    signal.addEventListener('abort', stop, { once: true })
    work.then(resolve, reject).finally(() => signal.removeEventListener('abort', stop))
  })
}
