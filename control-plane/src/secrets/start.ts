/**
 * Finds the keys when a process starts, in this order:
 *
 *   1. Before anything is changed, compare the keys with those that the database names. If one is missing, the start
 *      fails: with another key no stored secret could be read, and new ones would be lost to the right key.
 *   2. The database is migrated.
 *   3. On a new database, the first key is registered as the current one.
 *   4. Secrets that an earlier version stored in plain text are encrypted (seal-plain-envs.ts).
 *
 * A key file is created only for a database that has no key yet.
 */
import type { Database } from '../db/connect.ts'
import type { SecretKey } from './cipher.ts'
import { createKeyFile, type KeySource, readKeys } from './key-source.ts'
import { sealPlainEnvs } from './seal-plain-envs.ts'
import { createSecrets, type Secrets } from './secrets.ts'

/** Step 1. */
export async function findKeys(database: Database, source: KeySource): Promise<SecretKey[]> {
  const registered = await listRegisteredKeys(database)
  let keys = await readKeys(source)
  if (keys === undefined && registered.length === 0) {
    await createKeyFile(source.file)
    keys = await readKeys(source)
  }
  requireKeys(registered, keys ?? [], source)
  return keys! // The file exists now, or the line above has thrown.
}

/** Step 1 in a process that cannot create the file: it is created later, by the process that registers the key. */
export async function checkKeys(database: Database, source: KeySource): Promise<void> {
  const registered = await listRegisteredKeys(database)
  if (registered.length > 0) requireKeys(registered, (await readKeys(source)) ?? [], source)
}

/** Steps 3 and 4. Runs under the lock of the migration. */
export async function registerKeys(database: Database, keys: SecretKey[], source: KeySource): Promise<Secrets> {
  await database.pool.query('insert into secret_keys (id, current) values ($1, true) on conflict do nothing', [
    keys[0]!.id,
  ])
  const registered = await listRegisteredKeys(database)
  requireKeys(registered, keys, source)
  const current = registered.find((key) => key.current)!
  const secrets = createSecrets(keys, current.id, source)
  await sealPlainEnvs(database, secrets)
  return secrets
}

function requireKeys(registered: RegisteredKey[], keys: SecretKey[], { value, file }: KeySource): void {
  const missing = registered.filter(({ id }) => !keys.some((key) => key.id === id)).map(({ id }) => id)
  if (missing.length === 0) return
  const where = value === '' ? file : 'WARREN_SECRETS_KEY'
  const found = keys.length === 0 ? `${where} does not exist` : `${where} has ${keys.map(({ id }) => id).join(', ')}`
  throw new Error(
    `wrong secrets key: the secrets in this database are encrypted with key ${missing.join(', ')}, but ${found}. ` +
      'Nothing was changed. Restore the right key from your back-up and start again',
  )
}

export type RegisteredKey = { id: string; current: boolean }

/** The database may be older than the table. */
export async function listRegisteredKeys({ pool }: Pick<Database, 'pool'>): Promise<RegisteredKey[]> {
  const { rows } = await pool.query<{ found: boolean }>(`select to_regclass('secret_keys') is not null as found`)
  if (!rows[0]!.found) return []
  return (await pool.query<RegisteredKey>('select id, current from secret_keys order by created_at, id')).rows
}
