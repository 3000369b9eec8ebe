/**
 * Migrations: numbered SQL files, applied once, in order. Kysely's migrator takes an advisory lock, so any number of
 * processes may start at once. The job tables of graphile-worker come along, under a lock of our own.
 */
import { readdir, readFile } from 'node:fs/promises'
import { runMigrations } from 'graphile-worker'
import { sql } from 'kysely'
import { type Migration, Migrator } from 'kysely/migration'
import type pg from 'pg'
import type { Database, Db } from './connect.ts'

const FOLDER = new URL('./migrations/', import.meta.url)
/** Any constant will do; this one is ours. */
const WORKER_MIGRATION_LOCK = 7_236_001

export async function migrate(database: Database): Promise<void> {
  const migrator = new Migrator({ db: database.db, provider: { getMigrations: readMigrations } })
  const { error } = await migrator.migrateToLatest()
  if (error) throw new Error('could not migrate the database', { cause: error })
  await migrateWorker(database.pool)
}

async function readMigrations(): Promise<Record<string, Migration>> {
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

async function migrateWorker(pool: pg.Pool): Promise<void> {
  const client = await pool.connect()
  try {
    await client.query('select pg_advisory_lock($1)', [WORKER_MIGRATION_LOCK])
    await runMigrations({ pgPool: pool })
  } finally {
    await client.query('select pg_advisory_unlock($1)', [WORKER_MIGRATION_LOCK]).catch(() => {})
    client.release()
  }
}
