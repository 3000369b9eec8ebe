import assert from 'node:assert/strict'
import { test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { sql } from 'kysely'
import { diskApi, STORE_CONFIG, startStore, UNKNOWN_KEY } from '../testing/disks.ts'
import { setBalance } from '../testing/set-balance.ts'
import { createHostedApp } from '../testing/with-host.ts'

const hosted = await createHostedApp({ host: { memMib: 10_000_000 }, config: STORE_CONFIG })
const { app, deps, user, send, get } = hosted
const store = await startStore()
const { body, register, rotate, remove } = diskApi(hosted, store)

test('a disk can be registered, listed, read by id and name, and deleted', async () => {
  const who = await user({ plan: 'pro' })
  const created = await register(who, { name: 'media' })

  assert.match(created.id, /^disk_/)
  const config = { bucket: 'data', endpoint: store.endpoint, region: 'auto', use_path_style: true }
  assert.deepEqual(
    { ...created, id: '', created_at: '' },
    { id: '', name: 'media', kind: 's3', config, created_at: '' },
  )
  const list = (await get('/v1/disks', who.key)).body.data
  assert.deepEqual(list, { data: [created], pagination: { total: 1, limit: 50, offset: 0, count: 1 } })
  for (const name of [created.id, 'media']) {
    assert.deepEqual((await get(`/v1/disks/${name}`, who.key)).body.data, created)
  }
  assert.deepEqual((await remove(who, 'media')).body.data, { deleted: true })
  const absent = await get('/v1/disks/media', who.key)
  assert.deepEqual([absent.status, absent.body.data], [404, { message: 'disk not found', code: 'not_found' }])
  assert.equal((await remove(who, created.id)).status, 404)
  assert.equal((await rotate(who, created.id, 'new')).status, 404)
})

test("another user's disk is not found by any route", async () => {
  const [ada, bob] = [await user({ plan: 'pro' }), await user({ plan: 'pro' })]
  const { id } = await register(ada, { name: 'private' })
  const absent = JSON.stringify((await get('/v1/disks/none', bob.key)).body)

  for (const name of [id, 'private']) {
    const responses = [await get(`/v1/disks/${name}`, bob.key), await rotate(bob, name, 'x'), await remove(bob, name)]
    for (const { status, body: theirs } of responses) assert.deepEqual([status, JSON.stringify(theirs)], [404, absent])
  }
  assert.equal((await get('/v1/disks', bob.key)).body.data.pagination.total, 0)
  assert.equal((await get(`/v1/disks/${id}`, ada.key)).status, 200)
})

test('a name is unique per user and can be used again after a delete', async () => {
  const [one, other] = [await user({ plan: 'pro' }), await user({ plan: 'pro' })]
  await register(one, { name: 'shared' })
  await register(other, { name: 'shared' })

  const twice = await send('POST', '/v1/disks', one, body({ name: 'shared' }))
  assert.deepEqual(
    [twice.status, twice.body.data],
    [409, { message: 'disk name shared is already in use', code: 'name_in_use' }],
  )
  await remove(one, 'shared')
  await register(one, { name: 'shared' })
})

test('a body that is not valid is 400 with the field, and the store is not asked', async () => {
  const who = await user({ plan: 'pro' })
  const asked = store.requests.length
  const config = body().config
  const credentials = body().credentials
  const cases: [field: string, more: object][] = [
    ['name', { name: 'Upper' }],
    ['name', { name: undefined }],
    ['kind', { kind: 'nfs' }],
    ['kind', { kind: undefined }],
    ['config', { config: undefined }],
    ['config.bucket', { config: { ...config, bucket: '' } }],
    ['config.bucket', { config: { ...config, bucket: 'a/b' } }],
    ['config.endpoint', { config: { bucket: 'data' } }],
    ['config.endpoint', { config: { ...config, endpoint: 's3.example.com' } }],
    ['config.endpoint', { config: { ...config, endpoint: 'http://key:secret@s3.example.com' } }],
    ['config.region', { config: { ...config, region: 'eu west' } }],
    ['credentials', { credentials: undefined }],
    ['credentials.secret_key', { credentials: { access_key: 'a' } }],
    ['credentials.access_key', { credentials: { ...credentials, access_key: 'a b' } }],
  ]

  for (const [field, more] of cases) {
    const { status, body: refused } = await send('POST', '/v1/disks', who, body(more))
    assert.deepEqual([status, Object.keys(refused.data).sort()], [400, ['code', field]], field)
    assert.equal(refused.data.code, 'validation_failed')
  }
  assert.equal(store.requests.length, asked)
})

test('a store that refuses the credentials is 400, and nothing is registered', async () => {
  const who = await user({ plan: 'pro' })
  const credentials = { access_key: UNKNOWN_KEY, secret_key: 'secret' }

  const { status, body: refused } = await send('POST', '/v1/disks', who, body({ credentials }))

  assert.deepEqual([status, refused.data.credentials], [400, 'the store does not know this access key'])
  assert.equal((await get('/v1/disks', who.key)).body.data.pagination.total, 0)
})

test('plans limit concurrent and daily disks, credit is required, and then the store is not asked', async () => {
  const asked = store.requests.length
  const free = await send('POST', '/v1/disks', await user({ plan: 'free' }), body())
  assert.deepEqual([free.status, free.body.data.code], [429, 'cap_reached'])
  const poor = await user({ plan: 'pro' })
  await setBalance(deps.db, poor.id, 0)
  const unpaid = await send('POST', '/v1/disks', poor, body())
  assert.deepEqual([unpaid.status, unpaid.body.data.code], [402, 'insufficient_credit'])
  assert.equal(store.requests.length, asked)

  const beginner = await user({ plan: 'beginner' })
  for (let n = 0; n < 5; n++) await register(beginner, { name: `n-${n}` })
  assert.equal((await send('POST', '/v1/disks', beginner, body())).body.data.code, 'cap_reached')
  const { disks } = (await get('/v1/plan', beginner.key)).body.data
  assert.deepEqual(disks, { concurrent: { limit: 5, used: 5 }, per_day: { limit: 50, used: 5 } })
  await sql`insert into disks (id, user_id, name, bucket, endpoint, region, use_path_style, deleted_at)
    select 'disk_old' || n, ${beginner.id}, 'old', 'b', 'e', 'auto', true, now() from generate_series(1, 45) n`.execute(
    deps.db,
  )
  await remove(beginner, 'n-0')
  assert.equal((await send('POST', '/v1/disks', beginner, body())).body.data.code, 'daily_cap_reached')
})

test('registrations at the same time do not exceed the cap', async () => {
  const beginner = await user({ plan: 'beginner' })
  for (let n = 0; n < 3; n++) await register(beginner)

  const responses = await Promise.all(Array.from({ length: 4 }, () => send('POST', '/v1/disks', beginner, body())))

  assert.deepEqual(responses.map(({ status }) => status).sort(), [200, 200, 429, 429])
  assert.equal((await get('/v1/disks', beginner.key)).body.data.pagination.total, 5)
})

test('one user cannot make this machine connect to many stores at once', async () => {
  const who = await user({ plan: 'enterprise' })
  const answer = Promise.withResolvers<void>()
  store.beforeAnswer = () => answer.promise
  const asked = store.requests.length

  const early: string[] = []
  const all = Array.from({ length: 8 }, async () => {
    const { status, body: response } = await send('POST', '/v1/disks', who, body())
    if (status !== 200) early.push(response.data.code)
    return status
  })
  await until(() => early.length === 4 && store.requests.length - asked === 4, 'four are refused')
  answer.resolve()
  const statuses = await Promise.all(all)
  delete store.beforeAnswer

  assert.deepEqual(early, Array(4).fill('rate_limited'))
  assert.equal(statuses.filter((status) => status === 200).length, 4)
})

test('a repeated Idempotency-Key gives the same disk, and another body is a conflict', async () => {
  const who = await user({ plan: 'pro' })
  const payload = body()
  const post = (sent: object) =>
    app.inject({
      method: 'POST',
      url: '/v1/disks',
      headers: { ...who.headers, 'idempotency-key': 'one' },
      payload: sent,
    })

  const [first, second] = [await post(payload), await post(payload)]
  const other = await post(body())

  assert.equal(first.statusCode, 200)
  assert.equal(second.payload, first.payload)
  assert.equal(second.headers['idempotent-replayed'], 'true')
  assert.deepEqual([other.statusCode, other.json().data.code], [409, 'idempotency_key_reused'])
  assert.equal((await get('/v1/disks', who.key)).body.data.pagination.total, 1)
})

test('credentials are encrypted at rest, never returned, replaced by a rotation, and erased by a delete', async () => {
  const who = await user({ plan: 'pro' })
  const secrets = ['first-secret', 'second-secret']
  const [first, second] = secrets as [string, string]
  const created = await register(who, { credentials: { access_key: 'first-key', secret_key: first } })
  const stored = async () =>
    (await deps.db.selectFrom('disks').selectAll().where('id', '=', created.id).executeTakeFirstOrThrow()).credentials

  const sealed = await stored()
  const rotated = await rotate(who, created.id, second, 'second-key')
  const resealed = await stored()
  const seen = [rotated, await get('/v1/disks', who.key), await get('/v1/audit', who.key)].map((one) =>
    JSON.stringify(one),
  )
  await remove(who, created.id)

  assert.deepEqual([rotated.status, rotated.body.data], [200, created])
  assert.match(sealed ?? '', /^warren1\./)
  assert.notEqual(sealed, resealed)
  assert.equal(await stored(), null)
  for (const text of [sealed, resealed, ...seen]) for (const secret of secrets) assert.ok(!text?.includes(secret))
  const dump = await sql<{ text: string }>`select d::text as text from disks d where id = ${created.id}
    union all select k::text from idempotency_keys k`.execute(deps.db)
  for (const { text } of dump.rows) assert.ok(!text.includes(first) && !text.includes(second))
})

test('a rotation that the store refuses changes nothing', async () => {
  const who = await user({ plan: 'pro' })
  const { id } = await register(who)
  const row = () => deps.db.selectFrom('disks').selectAll().where('id', '=', id).executeTakeFirstOrThrow()
  const before = await row()

  const refused = await rotate(who, id, 'x', UNKNOWN_KEY)
  const incomplete = await send('PATCH', `/v1/disks/${id}`, who, { credentials: { access_key: 'a' } })

  assert.deepEqual([refused.status, Object.keys(refused.body.data)], [400, ['credentials', 'code']])
  assert.deepEqual([incomplete.status, Object.keys(incomplete.body.data)], [400, ['credentials.secret_key', 'code']])
  assert.deepEqual(await row(), before)
})

test('every change of a disk is in the audit log, under the id or name that was given', async () => {
  const who = await user({ plan: 'pro' })
  const { id } = await register(who, { name: 'audited' })
  await rotate(who, 'audited', 'next')
  await remove(who, id)

  const { data } = (await get('/v1/audit', who.key)).body.data
  const entries = data.map(({ action, target, outcome }: Record<string, string>) => [action, target, outcome])
  assert.deepEqual(entries, [
    ['disk.delete', id, 'success'],
    ['disk.rotate', 'audited', 'success'],
    ['disk.create', id, 'success'],
  ])
})
