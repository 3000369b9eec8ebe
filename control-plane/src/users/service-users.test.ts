import assert from 'node:assert/strict'
import { mkdtemp, readFile, rm, stat, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { after, test } from 'node:test'
import { BANDWIDTH_UNMETERED } from '@warren/protocol'
import { addCredit } from '../credit/add.ts'
import { createTestApp } from '../testing/app.ts'
import { createHostedApp } from '../testing/with-host.ts'
import { hashKey, revokeApiKey } from './keys.ts'
import { ensureGatewayUser, ensureLocalUser } from './service-users.ts'

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

test('the gateway has an account on the plan internal: no caps, no charges, no operator, no rate limit, unmetered traffic', async () => {
  const hosted = await createHostedApp({ config: { rateLimitPerMinute: 5 } })
  const key = await ensureGatewayUser(hosted.deps.db, path.join(folder, 'gateway.key'))
  const gateway = { id: '', keyId: '', key, headers: { 'x-api-key': key } }
  const { user_id: id } = (await hosted.get('/v1/whoami', key)).body.data
  await hosted.deps.db.transaction().execute((tx) => addCredit(tx, id, -500, { kind: 'adjustment', reason: 'test' }))

  const created = await hosted.create(gateway)
  const statuses = await Promise.all(Array.from({ length: 20 }, async () => (await hosted.get('/v1/plan', key)).status))

  assert.equal(created.status, 200)
  assert.equal(created.body.data.bandwidth_quota_bytes, BANDWIDTH_UNMETERED)
  assert.deepEqual(new Set(statuses), new Set([200]))
  assert.equal((await hosted.get('/v1/credit', key)).body.data.charged, false)
  assert.equal((await hosted.get('/v1/hosts', key)).status, 403)
  const { rows } = await hosted.deps.database.pool.query('select billable from usage_intervals')
  assert.deepEqual(rows, [{ billable: false }])
})

test('the files of two accounts do not share a key', async () => {
  const local = await ensureLocalUser(deps.db, keyFile)

  assert.notEqual(await ensureGatewayUser(deps.db, keyFile), local)
})
