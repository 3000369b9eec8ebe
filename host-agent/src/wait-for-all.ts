/**
 * Like Promise.all, but rejects only when every promise has settled. For steps that must have ended, whichever way,
 * before a rollback: Promise.all rejects while the others still create what the rollback is to remove.
 */
export async function waitForAll<const T extends readonly unknown[]>(
  promises: T,
): Promise<{ -readonly [K in keyof T]: Awaited<T[K]> }> {
  const results = await Promise.allSettled(promises)
  const failed = results.find((result) => result.status === 'rejected')
  if (failed) throw failed.reason
  return results.map((result) => (result as PromiseFulfilledResult<unknown>).value) as never
}
