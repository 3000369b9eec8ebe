/**
 * Ends the open requests of revoked access tokens. Every request made with a token is tracked from its admission to its
 * end, including upgraded connections. When the token is disabled, rotated or deleted, all of them end, in every
 * process.
 *
 * The database notifies `credentials_changed`, and each process then checks which of its open tokens still exist. The
 * same check runs every CHECK_EVERY_MS while any request is open, in case a notification was lost or a request was
 * admitted while one was on its way.
 */
import type { Log } from '@warren/kit/log'
import type { Database } from '../db/connect.ts'

/** The streams of a revoked token must end within 5 s. */
const CHECK_EVERY_MS = 2_000

export type TokenStreams = {
  /** `end` is called once if the token is revoked before the returned function is called. */
  add(tokenHash: string, end: () => void): () => void
  /** Called when credentials have changed. */
  check(): void
  close(): void
}

export function createTokenStreams(database: Database, log: Pick<Log, 'warn'>): TokenStreams {
  const open = new Map<string, Set<() => void>>()
  let timer: NodeJS.Timeout | undefined
  let checking = false
  let again = false

  async function findValid(hashes: string[]): Promise<Set<string>> {
    const rows = await database.named<{ hash: Buffer }>(
      'valid-access-tokens',
      'select hash from access_tokens where hash = any($1)',
      [hashes.map((hash) => Buffer.from(hash, 'hex'))],
    )
    return new Set(rows.map((row) => row.hash.toString('hex')))
  }

  async function endRevoked(): Promise<void> {
    const hashes = [...open.keys()]
    if (hashes.length === 0) return
    const valid = await findValid(hashes)
    for (const hash of hashes) {
      if (valid.has(hash)) continue
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
    endRevoked()
      // An unavailable database says nothing about tokens; the next check follows in two seconds.
      .catch((error) => log.warn({ err: error }, 'failed to check for revoked access tokens'))
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
