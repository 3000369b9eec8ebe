/**
 * Each test file gets its own database, copied from a migrated template: that takes tens of milliseconds, and files run
 * in parallel without affecting each other. The template's name contains a hash of the migrations, so it is never
 * outdated.
 */
import { createHash, randomBytes } from 'node:crypto'
import { readdir, readFile } from 'node:fs/promises'
import { after } from 'node:test'
import pg from 'pg'
import { startTestPostgres, TEST_POSTGRES_VARIABLE } from './testing.ts'

/** `fill` migrates the new template and closes its connections. */
export type Template = { name: string; migrations: URL; fill: (url: string) => Promise<void> }

const TEMPLATE_LOCK = 7_236_002

let server: Promise<string> | undefined

/** Without a template: without any table, for tests of migrations. */
export async function createTestDatabaseUrl(template?: Template): Promise<string> {
  server ??= findServer()
  const serverUrl = await server
  const admin = new pg.Client({ connectionString: serverUrl })
  await admin.connect()
  try {
    const from = template === undefined ? '' : `template ${await ensureTemplate(admin, serverUrl, template)}`
    const name = `test_${randomBytes(8).toString('hex')}`
    await admin.query(`create database ${name} ${from}`)
    return urlOf(serverUrl, name)
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

async function ensureTemplate(admin: pg.Client, serverUrl: string, template: Template): Promise<string> {
  const name = `template_${template.name}_${await hashFiles(template.migrations)}`
  // Also held while copying: a template with an open connection cannot be copied.
  await admin.query('select pg_advisory_lock($1)', [TEMPLATE_LOCK])
  const { rowCount } = await admin.query('select from pg_database where datname = $1', [name])
  if (rowCount === 0) {
    await admin.query(`create database ${name}`)
    await template.fill(urlOf(serverUrl, name))
  }
  return name
}

async function hashFiles(folder: URL): Promise<string> {
  const hash = createHash('sha256')
  for (const file of (await readdir(folder)).sort()) hash.update(await readFile(new URL(file, folder)))
  return hash.digest('hex').slice(0, 16)
}

const urlOf = (serverUrl: string, name: string): string => serverUrl.replace('/postgres?', `/${name}?`)
