import { after } from 'node:test'
import { createTestDatabaseUrl as createDatabaseUrl } from '@warren/kit/postgres/test-database'
import { connectDatabase, type Database } from '../db/connect.ts'
import { MIGRATIONS, migrate } from '../db/migrate.ts'
import { TEST_SECRET_KEY } from './secrets.ts'

const SILENT = { warn() {} }

/** Closed when the test file ends. */
export async function createTestDatabase(): Promise<Database> {
  const database = connectDatabase(await createTestDatabaseUrl(), SILENT)
  after(() => database.close())
  return database
}

export const createTestDatabaseUrl = (): Promise<string> =>
  createDatabaseUrl({ name: 'control_plane', migrations: MIGRATIONS, fill })

/** Without any table, for tests of migrations. */
export const createEmptyDatabaseUrl = (): Promise<string> => createDatabaseUrl()

async function fill(url: string): Promise<void> {
  const database = connectDatabase(url, SILENT, { max: 4 })
  await migrate(database)
  await database.pool.query('insert into secret_keys (id, current) values ($1, true)', [TEST_SECRET_KEY.id])
  await database.close()
}
