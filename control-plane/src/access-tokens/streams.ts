/**
 * What access tokens have open: every request of a token, from its admission to its end, upgraded connections
 * included. A token that was disabled, rotated or voided loses all of it, in every process.
 *
 * The database says `credentials_changed`, and whoever hears it looks which of its open tokens still exist. That is
 * also looked up every CHECK_EVERY_MS while anything is open, for news that was not heard and for a request that
 * was admitted while the news was on its way.
 */
import type { Log } from '@warren/kit/log'
import type { Database } from '../db/connect.ts'

/** A void token's streams are over within 5 s. */
const CHECK_EVERY_MS = 2_000

export type TokenStreams = {
  /** `end` is called once, if the token becomes void before the returned function is called. */
  add(tokenHash: string, end: () => void): () => void
  /** Something about credentials has changed. */
  check(): void
  close(): void
}

export function createTokenStreams(database: Database, log: Pick<Log, 'warn'>): TokenStreams {
  const open = new Map<string, Set<() => void>>()
  let timer: NodeJS.Timeout | undefined
  let checking = false
  let again = false

  async function findLiving(hashes: string[]): Promise<Set<string>> {
    const rows = await database.named<{ hash: Buffer }>(
      'living-access-tokens',
      'select hash from access_tokens where hash = any($1)',
      [hashes.map((hash) => Buffer.from(hash, 'hex'))],
    )
    return new Set(rows.map((row) => row.hash.toString('hex')))
  }

  async function look(): Promise<void> {
    const hashes = [...open.keys()]
    if (hashes.length === 0) return
    const living = await findLiving(hashes)
    for (const hash of hashes) {
      if (living.has(hash)) continue
      const ends = open.get(hash)
      open.delete(hash)
      for (const end of ends ?? []) end()
    }
  }

  function check(): void {
    if (open.size === 0) return void stopTimer()
    again = checking
    if (checking) return
    checking = true
    look()
      // A database that does not answer says nothing about tokens; the next look is two seconds away.
      .catch((error) => log.warn({ err: error }, 'could not look whether access tokens are still valid'))
      .finally(() => {
        checking = false
        if (again) check()
      })
  }

  function stopTimer(): void {
    clearInterval(timer)
    timer = undefined
  }

  return {
    add(tokenHash, end) {
      const ends = open.get(tokenHash) ?? new Set()
      open.set(tokenHash, ends.add(end))
      timer ??= setInterval(check, CHECK_EVERY_MS).unref()
      return () => {
        ends.delete(end)
        if (ends.size === 0 && open.get(tokenHash) === ends) open.delete(tokenHash)
      }
    },
    check,
    close() {
      stopTimer()
      open.clear()
    },
  }
}
