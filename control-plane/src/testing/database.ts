/**
 * Each test file gets its own database, copied from a migrated template: that takes tens of milliseconds, and files run
 * in parallel without affecting each other. The template's name contains a hash of the migrations, so it is never
 * outdated.
 */
import { createHash, randomBytes } from 'node:crypto'
import { readdir, readFile } from 'node:fs/promises'
import { after } from 'node:test'
import { startTestPostgres, TEST_POSTGRES_VARIABLE } from '@warren/kit/postgres/testing'
import pg from 'pg'
import { connectDatabase, type Database } from '../db/connect.ts'
import { migrate } from '../db/migrate.ts'
import { TEST_SECRET_KEY } from './secrets.ts'

const TEMPLATE_LOCK = 7_236_002
const SILENT = { warn() {} }

let server: Promise<string> | undefined

/** Closed when the test file ends. */
export async function createTestDatabase(): Promise<Database> {
  const database = connectDatabase(await createTestDatabaseUrl(), SILENT)
  after(() => database.close())
  return database
}

export async function createTestDatabaseUrl(): Promise<string> {
  server ??= findServer()
  const admin = new pg.Client({ connectionString: await server })
  await admin.connect()
  try {
    const template = await ensureTemplate(admin, await server)
    const name = `test_${randomBytes(8).toString('hex')}`
    await admin.query(`create database ${name} template ${template}`)
    return urlOf(await server, name)
  } finally {
    await admin.end()
  }
}

/** Without any table, for tests of migrations. */
export async function createEmptyDatabaseUrl(): Promise<string> {
  server ??= findServer()
  const admin = new pg.Client({ connectionString: await server })
  await admin.connect()
  try {
    const name = `test_${randomBytes(8).toString('hex')}`
    await admin.query(`create database ${name}`)
    return urlOf(await server, name)
  } finally {
    await admin.end()
  }
}

async function findServer(): Promise<string> {
  const shared = process.env[TEST_POSTGRES_VARIABLE]
  if (shared) return shared
  const own = await startTestPostgres()
  after(() => own.stop())
  return own.url
}

async function ensureTemplate(admin: pg.Client, serverUrl: string): Promise<string> {
  const template = `template_${await hashMigrations()}`
  // Also held while copying: a template with an open connection cannot be copied.
  await admin.query('select pg_advisory_lock($1)', [TEMPLATE_LOCK])
  const { rowCount } = await admin.query('select from pg_database where datname = $1', [template])
  if (rowCount === 0) {
    await admin.query(`create database ${template}`)
    const database = connectDatabase(urlOf(serverUrl, template), SILENT, { max: 4 })
    await migrate(database)
    await database.pool.query('insert into secret_keys (id, current) values ($1, true)', [TEST_SECRET_KEY.id])
    await database.close()
  }
  return template
}

async function hashMigrations(): Promise<string> {
  const folder = new URL('../db/migrations/', import.meta.url)
  const hash = createHash('sha256')
  for (const file of (await readdir(folder)).sort()) hash.update(await readFile(new URL(file, folder)))
  return hash.digest('hex').slice(0, 16)
}

const urlOf = (serverUrl: string, name: string): string => serverUrl.replace('/postgres?', `/${name}?`)
