/**
 * Replaces the secrets key, while Warren runs. In this order:
 *
 *   1. With a key file, a new key is added to it. With WARREN_SECRETS_KEY, the operator has put the new key in front of the
 *      old one and restarted every process.
 *   2. The database names the new key as the current one. Every process learns of it with its next heartbeat, reads the file
 *      again and encrypts with the new key from then on; until all live processes do, nothing else happens.
 *   3. Every secret is decrypted and encrypted again, in batches.
 *   4. The old keys are removed from the database. It refuses that while a row needs one (migration 0006); then step 3 is
 *      repeated.
 *   5. The old keys are removed from the file.
 *
 * After a kill at any moment, running it again continues: an unfinished rotation is completed first, with the same key.
 */
import { setTimeout as delay } from 'node:timers/promises'
import { crashPoint } from '@warren/kit/crash-point'
import type pg from 'pg'
import type { Database } from '../db/connect.ts'
import { DEAD_AFTER_S } from '../jobs/processes.ts'
import { newSecretKey, type SecretKey } from './cipher.ts'
import { type KeySource, readKeys, writeKeyFile } from './key-source.ts'
import { placeOf, SECRET_COLUMNS, type SecretColumn } from './places.ts'
import { createSecrets, type Secrets } from './secrets.ts'
import { listRegisteredKeys } from './start.ts'

/** An arbitrary number that identifies the lock. */
const ROTATION_LOCK = 7_236_003
const BATCH = 200
/** Heartbeats follow each other in a second; this allows for a busy machine. */
const SWITCH_LIMIT_MS = 30_000
const POLL_MS = 200
const FOREIGN_KEY_VIOLATION = '23503'

export type Rotation = { key_id: string; secrets: number; removed_keys: number }

export async function rotateSecrets(database: Database, source: KeySource): Promise<Rotation> {
  const lock = await database.pool.connect()
  try {
    const { rows } = await lock.query('select pg_try_advisory_lock($1) as taken', [ROTATION_LOCK])
    if (!rows[0].taken) throw new Error('another rotation of the secrets key is running')
    return await rotate(database, source)
  } finally {
    await lock.query('select pg_advisory_unlock($1)', [ROTATION_LOCK]).catch(() => {}) // Released with the connection.
    lock.release()
  }
}

async function rotate(database: Database, source: KeySource): Promise<Rotation> {
  const registered = await listRegisteredKeys(database)
  const known = (await readKeys(source)) ?? []
  // Before a new key is made: a key file beside WARREN_SECRETS_KEY, say, would be taken for the right one later.
  const missing = registered.find(({ id }) => !known.some((key) => key.id === id))
  if (missing) {
    const where = source.value === '' ? source.file : 'WARREN_SECRETS_KEY'
    throw new Error(
      `secrets key ${missing.id} is missing in ${where}; the secrets that it encrypts cannot be read. Nothing was changed`,
    )
  }
  const keys = await chooseKey(known, registered, source)
  const target = keys[0]!
  if (source.value !== '') await waitForProcesses(database, target, 'has')
  await crashPoint('rotation.chosen')
  await switchKey(database, target)
  await crashPoint('rotation.switched')
  await waitForProcesses(database, target, 'uses')
  const secrets = createSecrets(keys, target.id)
  let count = 0
  let removed: number | undefined
  while (removed === undefined) {
    for (const column of SECRET_COLUMNS) count += await sealAgain(database.pool, secrets, column, target.id)
    removed = await removeOtherKeys(database, target)
  }
  await crashPoint('rotation.removed')
  if (source.value === '') await writeKeyFile(source.file, [target])
  return { key_id: target.id, secrets: count, removed_keys: removed }
}

/** Returns all keys, the new one first. */
async function chooseKey(
  keys: SecretKey[],
  registered: { id: string; current: boolean }[],
  source: KeySource,
): Promise<SecretKey[]> {
  const isUnfinished = registered.length > 1
  const current = registered.find((key) => key.current)
  if (isUnfinished) return [...keys].sort((a, b) => Number(b.id === current?.id) - Number(a.id === current?.id))
  const first = keys[0]
  if (first && first.id !== current?.id) return keys
  if (source.value !== '') {
    throw new Error('put a new key in front of the old one in WARREN_SECRETS_KEY (new,old), restart Warren, and repeat')
  }
  const added = [newSecretKey(), ...keys]
  await writeKeyFile(source.file, added)
  return added
}

async function switchKey(database: Database, target: SecretKey): Promise<void> {
  await database.db.transaction().execute(async (tx) => {
    await tx.updateTable('secret_keys').set({ current: false }).where('id', '<>', target.id).execute()
    await tx
      .insertInto('secret_keys')
      .values({ id: target.id, current: true })
      .onConflict((conflict) => conflict.column('id').doUpdateSet({ current: true }))
      .execute()
  })
}

async function waitForProcesses({ pool }: Database, target: SecretKey, what: 'has' | 'uses'): Promise<void> {
  const test = what === 'has' ? '$1 = any (secret_keys)' : 'secret_keys[1] = $1'
  for (const deadline = Date.now() + SWITCH_LIMIT_MS; ; await delay(POLL_MS)) {
    const { rows } = await pool.query<{ id: string }>(
      `select id from service_processes
        where seen_at > now() - make_interval(secs => $2) and coalesce(not (${test}), true)`,
      [target.id, DEAD_AFTER_S],
    )
    if (rows.length === 0) return
    if (Date.now() < deadline) continue
    throw new Error(
      `process ${rows[0]!.id} does not have the new key ${target.id}; restart Warren with it and repeat. ` +
        'No secret was changed',
    )
  }
}

/** A row that changes meanwhile is written by a process that already uses the new key. */
async function sealAgain(pool: pg.Pool, secrets: Secrets, column: SecretColumn, keyId: string): Promise<number> {
  const { table, column: name, key } = column
  let count = 0
  for (;;) {
    const { rows } = await pool.query<Record<string, string>>(
      `select ${[...key, name].join(', ')} from ${table} where key_id <> $1 limit $2`,
      [keyId, BATCH],
    )
    if (rows.length === 0) return count
    for (const row of rows) {
      const values = key.map((one) => row[one]!)
      const place = placeOf(column, values)
      const sealed = secrets.seal(place, await secrets.open(place, row[name]!))
      const condition = key.map((one, index) => `${one} = $${index + 3}`).join(' and ')
      await pool.query(`update ${table} set ${name} = $1 where ${name} = $2 and ${condition}`, [
        sealed,
        row[name],
        ...values,
      ])
      count++
      await crashPoint('rotation.sealed')
    }
  }
}

/** Undefined if a row still needs one of them. */
async function removeOtherKeys({ pool }: Database, target: SecretKey): Promise<number | undefined> {
  try {
    return (await pool.query('delete from secret_keys where id <> $1', [target.id])).rowCount ?? 0
  } catch (error) {
    if ((error as { code?: string }).code === FOREIGN_KEY_VIOLATION) return undefined
    throw error
  }
}
