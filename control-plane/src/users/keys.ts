/** API keys: 256 random bits, shown once and stored only as a hash. */
import { hash, randomBytes } from 'node:crypto'
import { notFound } from '@warren/kit/failure'
import { newId } from '@warren/protocol'
import type { Db } from '../db/connect.ts'

/** The rest of the key is hexadecimal, so no key can look like a sandbox access token (`skp_sb_`). */
const KEY_PREFIX = 'skp_'

export const newApiKey = (): string => KEY_PREFIX + randomBytes(32).toString('hex')
export const hashKey = (key: string): Buffer => Buffer.from(hash('sha256', key, 'hex'), 'hex')

/** Enough to recognise a key, too little to guess it. */
export const keyHint = (key: string): string => `${key.slice(0, 8)}...${key.slice(-4)}`

export async function createApiKey(db: Db, userId: string, name: string): Promise<{ id: string; key: string }> {
  const key = newApiKey()
  const id = newId('apiKey')
  await db
    .insertInto('api_keys')
    .values({ id, user_id: userId, name, hash: hashKey(key), hint: keyHint(key) })
    .execute()
  return { id, key }
}

/** A database trigger makes every process clear its cached credentials (migration 0001). */
export async function revokeApiKey(db: Db, id: string, now: Date): Promise<void> {
  const row = await db
    .updateTable('api_keys')
    .set((eb) => ({ revoked_at: eb.fn.coalesce('revoked_at', eb.val(now)) }))
    .where('id', '=', id)
    .returning('id')
    .executeTakeFirst()
  if (!row) throw notFound('key')
}
