/** Starts the embedded PostgreSQL on the data directory, or checks the server that DATABASE_URL names. */
import path from 'node:path'
import { urlFor } from '@warren/kit/postgres/logins'
import { startPostgres } from '@warren/kit/postgres/server'
import pg from 'pg'
import type { InstanceConfig } from './config.ts'
import { checkDatabaseFolder, postgresDir, recordDatabase } from './database-record.ts'
import type { Service } from './supervisor.ts'

export type EmbeddedDatabase = Service & { databaseUrl: string }

const OLDEST_VERSION = 16

export async function startDatabase(config: InstanceConfig, signal: AbortSignal): Promise<EmbeddedDatabase> {
  checkDatabaseFolder(config)
  const options = {
    dir: postgresDir(config),
    dataDir: config.dataDir,
    logFile: path.join(config.logDir, 'postgres.log'),
    hasRoles: true,
  }
  const server = await startPostgres(options, signal)
  try {
    await withClient(server.url, createDatabase)
    await recordDatabase(config)
  } catch (error) {
    await server.stop()
    throw new Error('failed to create the database "warren"', { cause: error })
  }
  return {
    databaseUrl: urlFor(server.url, { database: 'warren' }),
    exited: server.exited.then(() => undefined),
    stop: server.stop,
  }
}

/** Throws unless the server of DATABASE_URL responds and is new enough. Runs before anything is started. */
export async function checkDatabase(databaseUrl: string): Promise<void> {
  if (!/^postgres(ql)?:\/\//.test(databaseUrl)) {
    throw new Error('DATABASE_URL must begin with postgres:// or postgresql://')
  }
  let version: number
  try {
    version = await withClient(databaseUrl, async (client) => {
      const { rows } = await client.query<{ number: number }>(
        "select current_setting('server_version_num')::int / 10000 as number",
      )
      return rows[0]!.number
    })
  } catch (error) {
    throw new Error(`cannot connect to the database of DATABASE_URL (${describeDatabase(databaseUrl)})`, {
      cause: error,
    })
  }
  if (version < OLDEST_VERSION) {
    throw new Error(`the database of DATABASE_URL is PostgreSQL ${version}; Warren needs ${OLDEST_VERSION} or newer`)
  }
}

/** The address of the database without its password. */
export function describeDatabase(databaseUrl: string): string {
  try {
    const { user, host, port, database } = new pg.Client({ connectionString: databaseUrl })
    return `${user}@${host}:${port}/${database}`
  } catch {
    return 'not a PostgreSQL URL'
  }
}

async function createDatabase(client: pg.Client): Promise<void> {
  const { rowCount } = await client.query("select from pg_database where datname = 'warren'")
  if (rowCount === 0) await client.query('create database warren')
}

export async function withClient<T>(url: string, work: (client: pg.Client) => Promise<T>): Promise<T> {
  const client = new pg.Client({ connectionString: url, connectionTimeoutMillis: 5_000 })
  client.on('error', () => {}) // A broken connection also fails the query, which reports the error.
  await client.connect()
  try {
    return await work(client)
  } finally {
    await client.end().catch(() => {})
  }
}
