/**
 * Applies the migrations: numbered SQL files, each once and in order, and the tables of graphile-worker.
 *
 * Any number of processes may start at the same time. A separate advisory lock lets one of them migrate: Kysely's own
 * lock is not enough, because Kysely inspects all tables before it takes it, and fails if another process is changing
 * one of them.
 */
import { readdir, readFile } from 'node:fs/promises'
import { runMigrations } from 'graphile-worker'
import { sql } from 'kysely'
import { type Migration, Migrator } from 'kysely/migration'
import type { Database, Db } from './connect.ts'

const FOLDER = new URL('./migrations/', import.meta.url)
/** An arbitrary number that identifies this lock. */
const MIGRATION_LOCK = 7_236_001

/** `afterwards` runs under the same lock. */
export async function migrate(database: Database, afterwards?: () => Promise<void>): Promise<void> {
  const lockClient = await database.pool.connect()
  try {
    await lockClient.query('select pg_advisory_lock($1)', [MIGRATION_LOCK])
    const migrator = new Migrator({ db: database.db, provider: { getMigrations: readMigrations } })
    const { error } = await migrator.migrateToLatest()
    if (error) throw new Error('failed to migrate the database', { cause: error })
    await runMigrations({ pgPool: database.pool })
    await afterwards?.()
  } finally {
    await lockClient.query('select pg_advisory_unlock($1)', [MIGRATION_LOCK]).catch(() => {})
    lockClient.release()
  }
}

export async function readMigrations(): Promise<Record<string, Migration>> {
  const files = (await readdir(FOLDER)).filter((name) => name.endsWith('.sql')).sort()
  return Object.fromEntries(
    files.map((name) => [
      name.replace(/\.sql$/, ''),
      {
        up: async (db: Db) => {
          const text = await readFile(new URL(name, FOLDER), 'utf8')
          await sql.raw(text).execute(db)
        },
      },
    ]),
  )
}
