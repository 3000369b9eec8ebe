/**
 * The local user: an operator without limits, created at the first start.
 *
 * Its API key is stored in a file that only the owner can read, so that `warren env` can print it again. The file is
 * written before the key is inserted into the database. If the process is killed between the two, the next start reads
 * the file and inserts that key.
 */
import { readFile } from 'node:fs/promises'
import { writeFileDurably } from '@warren/kit/files'
import { newId } from '@warren/protocol'
import type { Db } from '../db/connect.ts'
import type { UserRow } from '../db/schema.ts'
import { createUser } from './create.ts'
import { hashKey, keyHint, newApiKey } from './keys.ts'

const LOCAL_NAME = 'local'

export async function ensureLocalUser(db: Db, keyFile: string): Promise<string> {
  const user = await findOrCreateLocalUser(db)
  const saved = await readFile(keyFile, 'utf8').catch(() => '')
  const key = (await isUsable(db, saved.trim())) ? saved.trim() : newApiKey()
  if (key !== saved.trim()) await writeFileDurably(keyFile, `${key}\n`, 0o600)
  await db
    .insertInto('api_keys')
    .values({ id: newId('apiKey'), user_id: user.id, name: 'local', hash: hashKey(key), hint: keyHint(key) })
    .onConflict((conflict) => conflict.column('hash').doNothing())
    .execute()
  return key
}

async function findOrCreateLocalUser(db: Db): Promise<UserRow> {
  const find = () => db.selectFrom('users').selectAll().where('name', '=', LOCAL_NAME).executeTakeFirst()
  const found = await find()
  if (found) return found
  try {
    return await createUser(db, { name: LOCAL_NAME, plan: 'local', operator: true })
  } catch (error) {
    // Two processes start for the first time on one database: one creates the user, the other finds it.
    const created = await find()
    if (created) return created
    throw error
  }
}

/** A key that was revoked stays revoked. It is replaced by a new one. */
async function isUsable(db: Db, key: string): Promise<boolean> {
  if (!/^skp_[0-9a-f]{64}$/.test(key)) return false
  const row = await db.selectFrom('api_keys').select('revoked_at').where('hash', '=', hashKey(key)).executeTakeFirst()
  return row === undefined || row.revoked_at === null
}
