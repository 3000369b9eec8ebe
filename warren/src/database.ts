/** The database: PostgreSQL from npm on the data directory with a database called `warren` in it, or somebody else's. */
import path from 'node:path'
import { startPostgres } from '@warren/kit/postgres/server'
import pg from 'pg'
import type { Box } from './config.ts'
import type { Part } from './kept.ts'

export type EmbeddedDatabase = Part & { databaseUrl: string }

/** 16 is the oldest we promise to run on. */
const OLDEST_VERSION = 16

export async function startDatabase(box: Box, signal: AbortSignal): Promise<EmbeddedDatabase> {
  const options = { dir: path.join(box.dataDir, 'postgres'), logFile: path.join(box.logDir, 'postgres.log') }
  const server = await startPostgres(options, signal)
  try {
    await withClient(server.url, createDatabase)
  } catch (error) {
    await server.stop()
    throw new Error('could not create the database', { cause: error })
  }
  return {
    databaseUrl: server.url.replace('/postgres?', '/warren?'),
    exited: server.exited.then(() => undefined),
    stop: server.stop,
  }
}

/** The server of DATABASE_URL answers and is new enough; otherwise people learn it here, before anything starts. */
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
    throw new Error(`cannot use the database of DATABASE_URL (${describeDatabase(databaseUrl)})`, { cause: error })
  }
  if (version < OLDEST_VERSION) {
    throw new Error(`the database of DATABASE_URL is PostgreSQL ${version}; Warren needs ${OLDEST_VERSION} or newer`)
  }
}

/** Where it is, without the password. */
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

async function withClient<T>(url: string, work: (client: pg.Client) => Promise<T>): Promise<T> {
  const client = new pg.Client({ connectionString: url, connectionTimeoutMillis: 5_000 })
  client.on('error', () => {}) // A connection that breaks fails its query, which is told.
  await client.connect()
  try {
    return await work(client)
  } finally {
    await client.end().catch(() => {})
  }
}
