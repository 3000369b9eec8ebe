/** DATABASE_URL: an external PostgreSQL server, also with several instances on it. */
import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { existsSync } from 'node:fs'
import path from 'node:path'
import { test } from 'node:test'
import { startTestPostgres } from '@warren/kit/postgres/testing'
import {
  createDataDir,
  fetchPath,
  listProcesses,
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
