import assert from 'node:assert/strict'
import { test } from 'node:test'
import { SANDBOX_STATUSES } from '@warren/protocol'
import { createTestApp } from '../testing/app.ts'
import { insertSandbox } from '../testing/sandboxes.ts'

const { deps, user, get } = await createTestApp({ config: { ingressDomain: 'box.test' } })

test('a fresh user has an empty list', async () => {
  const { key } = await user()

  assert.deepEqual((await get('/v1/sandboxes', key)).body, {
    status: 'success',
    data: { data: [], pagination: { total: 0, limit: 50, offset: 0, count: 0 } },
  })
})

test('the list is newest first, ties by id, with the exact total on every page', async () => {
  const { id, key } = await user()
  const at = (seconds: number) => new Date(Date.UTC(2026, 0, 1, 0, 0, seconds))
  const made = []
  for (const seconds of [1, 3, 2, 2])
    made.push(await insertSandbox(deps.db, id, 'running', { created_at: at(seconds) }))
  const [first, newest, tieA, tieB] = made.map((row) => row.id)

  const all = await get('/v1/sandboxes', key)
  const second = await get('/v1/sandboxes?limit=2&offset=1', key)
  const beyond = await get('/v1/sandboxes?offset=10', key)

  const ties = [tieA, tieB].sort().reverse()
  assert.deepEqual(
    all.body.data.data.map((one: { id: string }) => one.id),
    [newest, ...ties, first],
  )
  assert.deepEqual(
    second.body.data.data.map((one: { id: string }) => one.id),
    ties,
  )
  assert.deepEqual(second.body.data.pagination, { total: 4, limit: 2, offset: 1, count: 2 })
  assert.deepEqual(beyond.body.data.pagination, { total: 4, limit: 50, offset: 10, count: 0 })
})

test('limit is clamped, 0 means the default, and an invalid limit is 400', async () => {
  const { key } = await user()
  const limitOf = async (query: string) => (await get(`/v1/sandboxes?${query}`, key)).body.data.pagination?.limit

  assert.equal(await limitOf('limit=9999'), 500)
  assert.equal(await limitOf('limit=0'), 50)
  assert.equal(await limitOf('limit='), 50)
  for (const query of ['limit=-1', 'limit=x', 'limit=1.5', 'offset=-1', 'offset=x', 'offset=99999999999999999999']) {
    const { status, body } = await get(`/v1/sandboxes?${query}`, key)
    assert.deepEqual([query, status, body.data.code], [query, 400, 'validation_failed'])
    assert.ok(query.split('=')[0]! in body.data, JSON.stringify(body))
  }
})

test('the status filter returns sandboxes of that status with their total, and an unknown status is 400', async () => {
  const { id, key } = await user()
  for (const status of SANDBOX_STATUSES) await insertSandbox(deps.db, id, status)
  await insertSandbox(deps.db, id, 'paused')

  for (const status of SANDBOX_STATUSES) {
    const { data, pagination } = (await get(`/v1/sandboxes?status=${status}`, key)).body.data
    assert.equal(pagination.total, status === 'paused' ? 2 : 1)
    assert.deepEqual(new Set(data.map((one: { status: string }) => one.status)), new Set([status]))
  }
  const wrong = await get('/v1/sandboxes?status=sleeping', key)
  assert.equal(wrong.status, 400)
  assert.match(wrong.body.data.status, /^must be one of creating, running/)
})

test('the view has every field that is set and omits the others', async () => {
  const { id, key } = await user()
  const bare = await insertSandbox(deps.db, id, 'creating')
  const full = await insertSandbox(deps.db, id, 'paused', {
    ip: '100.64.0.7',
    ingress_enabled: true,
    auto_pause_after_seconds: 300,
    env_names: ['TOKEN'],
    ssh_pubkeys: ['ssh-ed25519 AAAA'],
    egress: ['example.com'],
    spawn_ms: 41.5,
    running_at: new Date('2026-01-02T03:04:05.678Z'),
    paused_at: new Date('2026-01-03T03:04:05.000Z'),
    forked_from: bare.id,
    status_reason: 'auto-pause',
  })

  const seen = (await get(`/v1/sandboxes/${full.id}`, key)).body.data
  const seenBare = (await get(`/v1/sandboxes/${bare.id}`, key)).body.data

  assert.deepEqual(seen, {
    id: full.id,
    name: full.name,
    status: 'paused',
    ip: '100.64.0.7',
    vcpu: 1,
    mem_mib: 1024,
    disk_mib: 10240,
    shape: 's-1vcpu-1gb',
    rootfs: 'debian:13',
    region: 'eu',
    ingress_enabled: true,
    ingress_url_template: `https://${full.id.slice(3).toLowerCase()}-<port>.box.test`,
    bandwidth_ingress_bytes: 0,
    bandwidth_quota_bytes: 5368709120,
    auto_pause_after_seconds: 300,
    envs: ['TOKEN'],
    ssh_pubkeys: ['ssh-ed25519 AAAA'],
    egress: ['example.com'],
    created_at: full.created_at.toISOString(),
    created_by: id,
    spawn_ms: 41.5,
    running_at: '2026-01-02T03:04:05.678Z',
    paused_at: '2026-01-03T03:04:05.000Z',
    forked_from: bare.id,
    status_reason: 'auto-pause',
  })
  assert.ok(!JSON.stringify(seenBare).includes('null'))
  assert.deepEqual(
    Object.keys(seen).filter((name) => !(name in seenBare)),
    [
      'ip',
      'ingress_url_template',
      'auto_pause_after_seconds',
      'spawn_ms',
      'running_at',
      'paused_at',
      'forked_from',
      'status_reason',
    ],
  )
})

test('a sandbox that does not exist and one of another user get identical responses', async () => {
  const [ada, bob] = [await user(), await user()]
  const foreign = await insertSandbox(deps.db, bob.id)

  const responses = await Promise.all(
    [foreign.id, 'sb-01ARZ3NDEKTSV4RRFFQ69G5FAV', 'nonsense', 'sb-%00', `${'x'.repeat(900)}`].map((id) =>
      get(`/v1/sandboxes/${id}`, ada.key),
    ),
  )

  for (const response of responses) {
    assert.deepEqual(
      [response.status, response.body],
      [404, { status: 'fail', data: { message: 'sandbox not found', code: 'not_found' } }],
    )
  }
})

test('concurrent lookups each get their own sandbox', async () => {
  const [ada, bob] = [await user(), await user()]
  const rows = []
  for (let i = 0; i < 20; i++) rows.push(await insertSandbox(deps.db, i % 2 ? ada.id : bob.id))

  const responses = await Promise.all(rows.map((row) => get(`/v1/sandboxes/${row.id}`, ada.key)))

  for (const [i, response] of responses.entries()) {
    assert.equal(response.status, i % 2 ? 200 : 404)
    if (i % 2) assert.equal(response.body.data.id, rows[i]!.id)
  }
})

test('a read sees every change that was acknowledged before it', async () => {
  const { id, key } = await user()
  const { id: sandbox } = await insertSandbox(deps.db, id)

  for (let i = 0; i < 50; i++) {
    await deps.db
      .updateTable('sandboxes')
      .set({ name: `name-${i}` })
      .where('id', '=', sandbox)
      .execute()
    assert.equal((await get(`/v1/sandboxes/${sandbox}`, key)).body.data.name, `name-${i}`)
  }
})
