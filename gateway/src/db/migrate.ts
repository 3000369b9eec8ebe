import { migrateSchema } from '@warren/kit/postgres/migrations'
import type { Database } from './connect.ts'

export const MIGRATIONS = new URL('./migrations/', import.meta.url)

/** The gateway has a schema in the database of the control plane. */
export const migrate = (database: Database): Promise<void> =>
  migrateSchema(database, { schema: 'gateway', folder: MIGRATIONS })
