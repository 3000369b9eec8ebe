import { after } from 'node:test'
import { createTestDatabaseUrl } from '@warren/kit/postgres/test-database'
import { connectDatabase, type Database } from '../db/connect.ts'
import { MIGRATIONS, migrate } from '../db/migrate.ts'

const SILENT = { warn() {} }

/** Closed when the test file ends. */
export async function createTestDatabase(): Promise<Database> {
  const url = await createTestDatabaseUrl({ name: 'gateway', migrations: MIGRATIONS, fill })
  const database = connectDatabase(url, SILENT)
  after(() => database.close())
  return database
}

async function fill(url: string): Promise<void> {
  const database = connectDatabase(url, SILENT, { max: 4 })
  await migrate(database)
  await database.close()
}
