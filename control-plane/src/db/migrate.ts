/** Applies the migrations of the control plane, and those of graphile-worker. */
import { migrateSchema, readMigrations as readFolder } from '@warren/kit/postgres/migrations'
import { runMigrations } from 'graphile-worker'
import { prepareDropOfPlainEnvs } from '../secrets/seal-plain-envs.ts'
import type { Database } from './connect.ts'

export const MIGRATIONS = new URL('./migrations/', import.meta.url)

/** `afterwards` runs under the lock of the migrations. */
export const migrate = (database: Database, afterwards?: () => Promise<void>): Promise<void> =>
  migrateSchema(database, { schema: 'public', folder: MIGRATIONS }, async () => {
    await runMigrations({ pgPool: database.pool })
    await prepareDropOfPlainEnvs(database)
    await afterwards?.()
  })

export const readMigrations = () => readFolder(MIGRATIONS)
