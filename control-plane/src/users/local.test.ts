import assert from 'node:assert/strict'
import { mkdtemp, readFile, rm, stat, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { after, test } from 'node:test'
import { createTestApp } from '../testing/app.ts'
import { hashKey, revokeApiKey } from './keys.ts'
import { ensureLocalUser } from './local.ts'

const { deps, get } = await createTestApp()
const folder = await mkdtemp(path.join(tmpdir(), 'warren-local-'))
after(() => rm(folder, { recursive: true }))
const keyFile = path.join(folder, 'local.key')

test('the first start makes the local user, and every later one finds the same key', async () => {
  const [first, second] = [await ensureLocalUser(deps.db, keyFile), await ensureLocalUser(deps.db, keyFile)]

  assert.equal(first, second)
  assert.equal((await readFile(keyFile, 'utf8')).trim(), first)
  assert.equal((await stat(keyFile)).mode & 0o777, 0o600)
  assert.equal((await get('/v1/hosts', first)).status, 200)
})

test('only a hash of a key is stored', async () => {
  const key = await ensureLocalUser(deps.db, keyFile)
  const { rows } = await deps.database.pool.query('select * from api_keys')

  assert.ok(!JSON.stringify(rows).includes(key.slice(8, -4)))
})

test('a start that was killed between the file and the database goes on with that key', async () => {
  const key = `skp_${'ab'.repeat(32)}`
  await writeFile(keyFile, key)

  assert.equal(await ensureLocalUser(deps.db, keyFile), key)
  assert.equal((await get('/v1/whoami', key)).status, 200)
})

test('a revoked, garbled or lost key is replaced, and the revoked one stays worthless', async () => {
  const revoked = await ensureLocalUser(deps.db, keyFile)
  const { id } = await deps.db
    .selectFrom('api_keys')
    .select('id')
    .where('hash', '=', hashKey(revoked))
    .executeTakeFirstOrThrow()
  await revokeApiKey(deps.db, id, new Date())

  const replaced = await ensureLocalUser(deps.db, keyFile)
  await writeFile(keyFile, 'skp_half')
  const mended = await ensureLocalUser(deps.db, keyFile)

  assert.equal(new Set([revoked, replaced, mended]).size, 3)
  assert.equal((await get('/v1/whoami', mended)).status, 200)
  assert.equal((await get('/v1/whoami', revoked)).status, 401)
})
