/** DATABASE_URL: a server that somebody else runs, and several boxes on it. */
import assert from 'node:assert/strict'
import { existsSync } from 'node:fs'
import path from 'node:path'
import { test } from 'node:test'
import { startTestPostgres } from '@warren/kit/postgres/testing'
import { failToStart, get, makeDataDir, processesOf, startBox, stop, warren } from './box.ts'

test('two boxes start on one database at the same moment, work, and leave it running', async (t) => {
  const server = await startTestPostgres()
  t.after(() => server.stop())
  const env = { DATABASE_URL: server.url }
  const dirs = [await makeDataDir(t), await makeDataDir(t)]

  const [one, two] = await Promise.all(dirs.map((dataDir) => startBox(dataDir, { env })))

  // Each has a key of its own, for the same user; each knows the other's.
  assert.notEqual(one!.key, two!.key)
  for (const box of [one!, two!]) {
    for (const { key } of [one!, two!]) assert.equal((await get(box, '/v1/whoami', key)).status, 200)
    assert.equal(existsSync(path.join(box.dataDir, 'postgres')), false)
    assert.match(box.output(), /^ {2}database {3}postgres@.*\/postgres$/m)
  }

  // A key that is revoked through one is worthless at the other at once.
  const { id, api_key } = JSON.parse((await warren(one!.dataDir, 'admin', '--json', 'key', 'create', 'local')).stdout)
  assert.equal((await get(two!, '/v1/whoami', api_key)).status, 200)
  await warren(one!.dataDir, 'admin', 'key', 'revoke', id)
  assert.equal((await get(two!, '/v1/whoami', api_key)).status, 401)

  for (const box of [one!, two!]) {
    assert.equal(await stop(box), 0)
    assert.deepEqual(processesOf(box.dataDir), [])
  }
  assert.equal(process.kill(server.pid, 0), true)
})

test('a database that cannot be reached is named, without its password', async (t) => {
  const dataDir = await makeDataDir(t)

  const { code, output } = await failToStart(dataDir, { env: { DATABASE_URL: 'postgres://me:hush@127.0.0.1:1/mine' } })

  assert.equal(code, 1)
  assert.match(
    output,
    /warren: cannot connect to the database of DATABASE_URL \(me@127\.0\.0\.1:1\/mine\): .*ECONNREFUSED/,
  )
  assert.doesNotMatch(output, /hush/)
})

test('a DATABASE_URL that is none is refused in words', async (t) => {
  const dataDir = await makeDataDir(t)

  const { code, output } = await failToStart(dataDir, { env: { DATABASE_URL: 'mysql://me@127.0.0.1:1/mine' } })

  assert.equal(code, 1)
  assert.match(output, /^warren: DATABASE_URL must begin with postgres:\/\/ or postgresql:\/\/$/m)
})
