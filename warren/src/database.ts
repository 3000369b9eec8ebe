/** The embedded database: PostgreSQL from npm on the data directory, with a database called `warren` in it. */
import path from 'node:path'
import { type PostgresServer, startPostgres } from '@warren/kit/postgres/server'
import pg from 'pg'
import type { Box } from './config.ts'

export type EmbeddedDatabase = PostgresServer & { databaseUrl: string }

export async function startDatabase(box: Box): Promise<EmbeddedDatabase> {
  const server = await startPostgres({
    dir: path.join(box.dataDir, 'postgres'),
    logFile: path.join(box.logDir, 'postgres.log'),
  })
  await createDatabase(server.url)
  return { ...server, databaseUrl: server.url.replace('/postgres?', '/warren?') }
}

async function createDatabase(url: string): Promise<void> {
  const client = new pg.Client({ connectionString: url })
  await client.connect()
  try {
    const { rowCount } = await client.query("select from pg_database where datname = 'warren'")
    if (rowCount === 0) await client.query('create database warren')
  } finally {
    await client.end()
  }
}
