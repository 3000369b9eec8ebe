/**
 * A transaction with the user's row locked, which serialises the creates of one user (caps.ts).
 *
 * Those of one process wait for each other before they take a connection. If they waited for the lock of the row, twenty of
 * them would hold every connection of the pool, and the requests of all other users would fail. Between processes the
 * lock decides.
 */
import { unavailable } from '@warren/kit/failure'
import type { Db, Tx } from '../db/connect.ts'
import { type LockedUser, lockUser } from './caps.ts'

/** As long as a statement may wait for the lock. */
const WAIT_LIMIT_MS = 30_000
const RETRY_S = 2

/** The end of the last one in line, by user. */
const lines = new Map<string, Promise<void>>()

export async function withLockedUser<T>(
  db: Db,
  userId: string,
  work: (tx: Tx, user: LockedUser) => Promise<T>,
): Promise<T> {
  const before = lines.get(userId)
  const { promise: ended, resolve: end } = Promise.withResolvers<void>()
  // Also of one that gives up: those behind it wait for those before it.
  const line = Promise.all([before, ended]).then(() => {})
  lines.set(userId, line)
  void line.then(() => {
    if (lines.get(userId) === line) lines.delete(userId)
  })
  try {
    if (before) await waitForTurn(before)
    return await db.transaction().execute(async (tx) => work(tx, await lockUser(tx, userId)))
  } finally {
    end()
  }
}

async function waitForTurn(before: Promise<void>): Promise<void> {
  let timer: NodeJS.Timeout | undefined
  const limit = new Promise<never>((_, reject) => {
    const tooLong = unavailable('too many requests of this account wait for each other', { retryAfterSeconds: RETRY_S })
    timer = setTimeout(() => reject(tooLong), WAIT_LIMIT_MS)
  })
  await Promise.race([before, limit]).finally(() => clearTimeout(timer))
}
