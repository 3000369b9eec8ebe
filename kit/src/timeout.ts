/** Waits for `work` at most `limitMs`, then fails with an error that names `what`. The work itself is not cancelled. */
export async function withTimeout<T>(limitMs: number, work: Promise<T> | T, what: string): Promise<T> {
  let timer: NodeJS.Timeout | undefined
  const timeout = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new Error(`${what} took more than ${limitMs} ms`)), limitMs)
  })
  try {
    return await Promise.race([work, timeout])
  } finally {
    clearTimeout(timer)
  }
}
