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

test('the first start creates the local user, and later starts find the same key', async () => {
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

test('after a start that was killed between writing the file and the database, the next start uses that key', async () => {
  const key = `skp_${'ab'.repeat(32)}`
  await writeFile(keyFile, key)

  assert.equal(await ensureLocalUser(deps.db, keyFile), key)
  assert.equal((await get('/v1/whoami', key)).status, 200)
})

test('a revoked, damaged or missing key is replaced, and the revoked one stays invalid', async () => {
  const revoked = await ensureLocalUser(deps.db, keyFile)
  const { id } = await deps.db
    .selectFrom('api_keys')
    .select('id')
    .where('hash', '=', hashKey(revoked))
    .executeTakeFirstOrThrow()
  await revokeApiKey(deps.db, id, new Date())

  const replaced = await ensureLocalUser(deps.db, keyFile)
  await writeFile(keyFile, 'skp_half')
  const repaired = await ensureLocalUser(deps.db, keyFile)

  assert.equal(new Set([revoked, replaced, repaired]).size, 3)
  assert.equal((await get('/v1/whoami', repaired)).status, 200)
  assert.equal((await get('/v1/whoami', revoked)).status, 401)
})
