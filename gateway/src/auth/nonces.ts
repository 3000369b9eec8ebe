/**
 * Single-use nonces, shared by all processes and kept over restarts. The primary key decides between parallel requests.
 * They are written after the signature was verified; otherwise anyone could use up the nonces of others and fill the table.
 */
import type { Deps } from '../deps.ts'
import type { Sweep } from '../sweep.ts'

/** Half of the time in which a message is valid: it may be stamped this far in the past and in the future. */
export const SKEW_MAX_MS = 60_000
/** Longer than the validity of the message, also on a process whose clock is late. */
const KEEP_AFTER_MS = 61_000 + 5 * 60_000

/** Returns false if the nonce was used before. */
export async function useNonce(
  deps: Pick<Deps, 'db'>,
  wallet: string,
  nonce: string,
  timestampMs: number,
): Promise<boolean> {
  const { numInsertedOrUpdatedRows } = await deps.db
    .insertInto('gateway.nonces')
    .values({
      wallet: wallet.toLowerCase(),
      nonce: nonce.toLowerCase(),
      expires_at: new Date(timestampMs + KEEP_AFTER_MS),
    })
    .onConflict((conflict) => conflict.doNothing())
    .executeTakeFirstOrThrow()
  return numInsertedOrUpdatedRows === 1n
}

export const deleteExpiredNonces: Sweep = {
  name: 'delete-expired-nonces',
  everyMs: 60_000,
  async run(deps) {
    await deps.db.deleteFrom('gateway.nonces').where('expires_at', '<', deps.now()).execute()
  },
}
