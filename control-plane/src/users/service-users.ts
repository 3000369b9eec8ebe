/**
 * Users that `warren start` creates at its first start: the local user, an operator without limits, and the account of the
 * deployment gateway.
 *
 * The API key of each is stored in a file that only the owner can read: `warren env` prints the local one again, and the
 * gateway reads its own. The file is written before the key is inserted into the database. If the process is killed between
 * the two, the next start reads the file and inserts that key.
 */
import { readFile } from 'node:fs/promises'
import { writeFileDurably } from '@warren/kit/files'
import { newId } from '@warren/protocol'
import type { Db } from '../db/connect.ts'
import type { UserRow } from '../db/schema.ts'
import { createUser, type NewUser } from './create.ts'
import { hashKey, keyHint, newApiKey } from './keys.ts'

type ServiceUser = Required<Pick<NewUser, 'name' | 'plan' | 'operator'>>

export const LOCAL_NAME = 'local'
const LOCAL: ServiceUser = { name: LOCAL_NAME, plan: 'local', operator: true }
const GATEWAY: ServiceUser = { name: 'warren-gateway', plan: 'internal', operator: false }

export const ensureLocalUser = (db: Db, keyFile: string): Promise<string> => ensureUser(db, LOCAL, keyFile)
export const ensureGatewayUser = (db: Db, keyFile: string): Promise<string> => ensureUser(db, GATEWAY, keyFile)

async function ensureUser(db: Db, wanted: ServiceUser, keyFile: string): Promise<string> {
  const user = await findOrCreate(db, wanted)
  const saved = await readFile(keyFile, 'utf8').catch(() => '')
  const key = (await isUsable(db, user, saved.trim())) ? saved.trim() : newApiKey()
  if (key !== saved.trim()) await writeFileDurably(keyFile, `${key}\n`, 0o600)
  await db
    .insertInto('api_keys')
    .values({ id: newId('apiKey'), user_id: user.id, name: wanted.name, hash: hashKey(key), hint: keyHint(key) })
    .onConflict((conflict) => conflict.column('hash').doNothing())
    .execute()
  return key
}

async function findOrCreate(db: Db, wanted: ServiceUser): Promise<UserRow> {
  const find = () => db.selectFrom('users').selectAll().where('name', '=', wanted.name).executeTakeFirst()
  const found = await find()
  if (found) return found
  try {
    return await createUser(db, wanted)
  } catch (error) {
    // Two processes start for the first time on one database: one creates the user, the other finds it.
    const created = await find()
    if (created) return created
    throw error
  }
}

/** A key that was revoked stays revoked, and that of another user is not taken over. Both are replaced by a new one. */
async function isUsable(db: Db, user: UserRow, key: string): Promise<boolean> {
  if (!/^skp_[0-9a-f]{64}$/.test(key)) return false
  const row = await db
    .selectFrom('api_keys')
    .select(['user_id', 'revoked_at'])
    .where('hash', '=', hashKey(key))
    .executeTakeFirst()
  return row === undefined || (row.revoked_at === null && row.user_id === user.id)
}
