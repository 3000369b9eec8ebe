/** Readiness check: the service is ready if the database responds to a query. */
import { errorText } from '@warren/kit/error-text'
import { Fault } from '@warren/kit/failure'
import { withTimeout } from '@warren/kit/timeout'
import type { Deps } from '../deps.ts'

/** Load balancers probe every second or two, so a later response would be useless. */
const LIMIT_MS = 1_500

export function createReadiness(deps: Deps): () => Promise<void> {
  let pending: Promise<unknown> | undefined
  // One query at a time: if the database hangs, the probes must not fill the pool.
  const queryDatabase = () => {
    pending ??= deps.database.pool.query('select 1').finally(() => {
      pending = undefined
    })
    return pending
  }

  return async () => {
    try {
      await withTimeout(LIMIT_MS, queryDatabase(), 'the database')
    } catch (error) {
      deps.log.warn({ err: error }, 'readiness check failed')
      throw new Fault('unavailable', 'database unreachable', {
        cause: error,
        retryAfterSeconds: 1,
        data: { ready: false, reason: reasonOf(error) },
      })
    }
  }
}

/** Public, so it must not contain addresses or paths. */
const reasonOf = (error: unknown): string =>
  /took more than/.test(errorText(error)) ? 'the database does not respond' : 'the database cannot be reached'
