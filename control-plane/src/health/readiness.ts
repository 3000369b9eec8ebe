/** Ready means: the database answered a query just now. */

import { errorText } from '@warren/kit/error-text'
import { Fault } from '@warren/kit/failure'
import { withTimeout } from '@warren/kit/timeout'
import type { Deps } from '../deps.ts'

/** Load balancers ask every second or two; an answer later than that is no answer. */
const LIMIT_MS = 1_500

export function createReadiness(deps: Deps): () => Promise<void> {
  let underWay: Promise<unknown> | undefined
  // One question at a time: a database that hangs must not fill the pool with questions about it.
  const ask = () => {
    underWay ??= deps.database.pool.query('select 1').finally(() => {
      underWay = undefined
    })
    return underWay
  }

  return async () => {
    try {
      await withTimeout(LIMIT_MS, ask(), 'the database')
    } catch (error) {
      deps.log.warn({ err: error }, 'not ready')
      throw new Fault('unavailable', 'database unreachable', {
        cause: error,
        retryAfterSeconds: 1,
        data: { ready: false, reason: reasonOf(error) },
      })
    }
  }
}

/** Enough for an operator, nothing about addresses or paths for anyone else. */
const reasonOf = (error: unknown): string =>
  /took more than/.test(errorText(error)) ? 'the database does not answer' : 'the database cannot be reached'
