/**
 * Migrations: numbered SQL files, applied once, in order, and the job tables of graphile-worker. All of it under one
 * lock of our own, so any number of processes may start at once: Kysely looks at every table of the database before
 * it takes its lock, and fails over one that another process is just changing.
 */
import { readdir, readFile } from 'node:fs/promises'
import { runMigrations } from 'graphile-worker'
import { sql } from 'kysely'
import { type Migration, Migrator } from 'kysely/migration'
import type { Database, Db } from './connect.ts'

const FOLDER = new URL('./migrations/', import.meta.url)
/** Any constant will do; this one is ours. */
const MIGRATION_LOCK = 7_236_001

export async function migrate(database: Database): Promise<void> {
  const holder = await database.pool.connect()
  try {
    await holder.query('select pg_advisory_lock($1)', [MIGRATION_LOCK])
    const migrator = new Migrator({ db: database.db, provider: { getMigrations: readMigrations } })
    const { error } = await migrator.migrateToLatest()
    if (error) throw new Error('could not migrate the database', { cause: error })
    await runMigrations({ pgPool: database.pool })
  } finally {
    await holder.query('select pg_advisory_unlock($1)', [MIGRATION_LOCK]).catch(() => {})
    holder.release()
  }
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
