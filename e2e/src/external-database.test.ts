/** DATABASE_URL: an external PostgreSQL server, also with several instances on it. */
import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { existsSync, readFileSync } from 'node:fs'
import path from 'node:path'
import { test } from 'node:test'
import { startTestPostgres } from '@warren/kit/postgres/testing'
import pg from 'pg'
import {
  createDataDir,
  fetchPath,
  listProcesses,
  ROOT,
  runWarren,
  startExpectingFailure,
  startInstance,
  stop,
} from './support/instance.ts'

test('two instances start on one database at the same time, work, and leave it running', async (t) => {
  const server = await startTestPostgres()
  t.after(() => server.stop())
  const env = { DATABASE_URL: server.url, WARREN_SECRETS_KEY: randomBytes(32).toString('hex') }
  const dirs = [await createDataDir(t), await createDataDir(t)]

  const [one, two] = await Promise.all(dirs.map((dataDir) => startInstance(dataDir, { env })))

  // Each has a separate key for the same user, and accepts the key of the other.
  assert.notEqual(one!.key, two!.key)
  for (const instance of [one!, two!]) {
    for (const { key } of [one!, two!]) assert.equal((await fetchPath(instance, '/v1/whoami', key)).status, 200)
    assert.equal(existsSync(path.join(instance.dataDir, 'postgres')), false)
    assert.match(instance.output(), /^ {2}database {3}postgres@.*\/postgres$/m)
  }

  // A key that is revoked through one instance stops working at the other at once.
  const { id, api_key } = JSON.parse(
    (await runWarren(one!.dataDir, 'admin', '--json', 'key', 'create', 'local')).stdout,
  )
  assert.equal((await fetchPath(two!, '/v1/whoami', api_key)).status, 200)
  await runWarren(one!.dataDir, 'admin', 'key', 'revoke', id)
  assert.equal((await fetchPath(two!, '/v1/whoami', api_key)).status, 401)

  for (const instance of [one!, two!]) {
    assert.equal(await stop(instance), 0)
    assert.deepEqual(listProcesses(instance.dataDir), [])
  }
  assert.equal(process.kill(server.pid, 0), true)
})

test('with a role for migrations, that of the API reads and writes rows only', async (t) => {
  const server = await startTestPostgres()
  t.after(() => server.stop())
  const urlOf = (role: string, database = 'warren') =>
    server.url.replace('//postgres:none@/postgres?', `//${role}:none@/${database}?`)
  // As docs/operating.md says.
  const [asSuperuser, asOwner] = readStatements()
  await query(urlOf('postgres', 'postgres'), asSuperuser!)
  await query(urlOf('warren_owner'), asOwner!)
  const env = { DATABASE_URL: urlOf('warren_api'), WARREN_MIGRATE_DATABASE_URL: urlOf('warren_owner') }
  const dataDir = await createDataDir(t)

  const instance = await startInstance(dataDir, { env })

  assert.equal((await fetchPath(instance, '/v1/whoami')).status, 200)
  await query(env.DATABASE_URL, ['select * from users', 'select * from graphile_worker._private_jobs'])
  await assert.rejects(query(env.DATABASE_URL, ['drop table users']), { code: '42501' })
  await assert.rejects(query(env.DATABASE_URL, ['create table mine (id int)']), { code: '42501' })
  assert.equal(await stop(instance), 0)
  assert.equal(await stop(await startInstance(dataDir, { env })), 0)
})

/** The two blocks of SQL, each as a list. */
function readStatements(): string[][] {
  const text = readFileSync(path.join(ROOT, 'docs/operating.md'), 'utf8')
  const section = text.slice(text.indexOf('## Roles in your own database'), text.indexOf('## Secrets at rest'))
  return [...section.matchAll(/```sql\n(.*?)```/gs)].map(([, block]) =>
    block!
      .replace(/--.*$/gm, '')
      .split(';')
      .map((statement) => statement.trim())
      .filter((statement) => statement !== ''),
  )
}

async function query(url: string, statements: string[]): Promise<void> {
  const client = new pg.Client({ connectionString: url })
  await client.connect()
  try {
    for (const statement of statements) await client.query(statement)
  } finally {
    await client.end()
  }
}

test('the message about an unreachable database names it without its password', async (t) => {
  const dataDir = await createDataDir(t)

  const { code, output } = await startExpectingFailure(dataDir, {
    env: { DATABASE_URL: 'postgres://me:hush@127.0.0.1:1/mine' },
  })

  assert.equal(code, 1)
  assert.match(
    output,
    /warren: cannot connect to the database of DATABASE_URL \(me@127\.0\.0\.1:1\/mine\): .*ECONNREFUSED/,
  )
  assert.doesNotMatch(output, /hush/)
})

test('an invalid DATABASE_URL gets a clear message', async (t) => {
  const dataDir = await createDataDir(t)

  const { code, output } = await startExpectingFailure(dataDir, {
    env: { DATABASE_URL: 'mysql://me@127.0.0.1:1/mine' },
  })

  assert.equal(code, 1)
  assert.match(output, /^warren: DATABASE_URL must begin with postgres:\/\/ or postgresql:\/\/$/m)
})
