/**
 * Applies the migrations of one schema: numbered SQL files, each once and in order.
 *
 * Any number of processes may start at the same time. A separate advisory lock lets one of them migrate: Kysely's own
 * lock is not enough, because Kysely inspects the tables of all schemas before it takes it, and fails if another process is
 * changing one of them.
 */
import { readdir, readFile } from 'node:fs/promises'
import { type Kysely, sql } from 'kysely'
import { type Migration, Migrator } from 'kysely/migration'
import type pg from 'pg'

/** An arbitrary number that identifies this lock. */
const MIGRATION_LOCK = 7_236_001

/** `schema` also holds the table of applied migrations. `afterwards` runs under the same lock. */
export async function migrateSchema<Tables>(
  { pool, db }: { pool: pg.Pool; db: Kysely<Tables> },
  { schema, folder }: { schema: string; folder: URL },
  afterwards?: () => Promise<void>,
): Promise<void> {
  await withMigrationLock(pool, async () => {
    const provider = { getMigrations: () => readMigrations(folder) }
    const { error } = await new Migrator({ db, provider, migrationTableSchema: schema }).migrateToLatest()
    if (error) throw new Error(`failed to migrate the schema ${schema} of the database`, { cause: error })
    await afterwards?.()
  })
}

/** One process at a time, of all that start on the database. */
export async function withMigrationLock(pool: pg.Pool, work: () => Promise<void>): Promise<void> {
  const lockClient = await pool.connect()
  try {
    await lockClient.query('select pg_advisory_lock($1)', [MIGRATION_LOCK])
    await work()
  } finally {
    await lockClient.query('select pg_advisory_unlock($1)', [MIGRATION_LOCK]).catch(() => {})
    lockClient.release()
  }
}

/** By name, which is that of the file without its ending. */
export async function readMigrations(folder: URL): Promise<Record<string, Migration>> {
  const files = (await readdir(folder)).filter((name) => name.endsWith('.sql')).sort()
  return Object.fromEntries(
    files.map((name) => [
      name.replace(/\.sql$/, ''),
      {
        up: async (db: Kysely<unknown>) => {
          const text = await readFile(new URL(name, folder), 'utf8')
          await sql.raw(text).execute(db)
        },
      },
    ]),
  )
}
