import assert from 'node:assert/strict'
import { test } from 'node:test'
import { DISK_MOUNTS_MAX } from '@warren/protocol'
import { createDiskSandboxes } from '../testing/disk-sandboxes.ts'
import { WRONG_SECRET } from '../testing/fake-mounts.ts'

const { app, deps, host, user, create, send, get, owner, ...api } = await createDiskSandboxes()
const { newSandbox, pause, setHostDisks, wantedBy } = api
const { register, remove, attach, detach, list, waitForMount } = api

test('a disk is attached by id or name, becomes mounted, and the host has everything that it needs', async () => {
  const disk = await register(owner)
  const id = await newSandbox()

  const attached = await attach(owner, id, disk.name, '/mnt//data/', { sub_path: '/a/b/', read_only: true })

  assert.deepEqual([attached.status, attached.body.data], [200, { ok: true, id }])
  const { id: _, revision, ...mount } = wantedBy(id)[0]!
  assert.equal(revision, 1)
  assert.deepEqual(mount, {
    ...{ mount_path: '/mnt/data', read_only: true, sub_path: 'a/b', ...disk.config, allow_loopback: false },
    credentials: { access_key: 'key', secret_key: 'a-secret-key' },
  })
  assert.deepEqual(await waitForMount(owner, id, 'mounted'), {
    ...{ disk_id: disk.id, name: disk.name, kind: 's3' },
    config: { bucket: disk.config.bucket, endpoint: disk.config.endpoint },
    ...{ mount_path: '/mnt/data', sub_path: 'a/b', read_only: true, mount_status: 'mounted' },
  })
  assert.deepEqual((await detach(owner, id, disk.id, '/mnt/data/')).body.data, { detached: true })
  assert.deepEqual([wantedBy(id), await list(owner, id)], [[], []])
})

test('an attach that is repeated changes nothing; another disk, prefix or a path inside is a conflict', async () => {
  const [disk, other] = [await register(owner), await register(owner)]
  const id = await newSandbox()
  const first = await attach(owner, id, disk.id)
  await waitForMount(owner, id, 'mounted') // Until then, sweeps send the mounts again.
  const sent = host.calls.filter((call) => call === `PUT /v1/vms/${id}/mounts`).length

  const second = await attach(owner, id, disk.name, '/mnt/./data')

  assert.deepEqual(second.body, first.body)
  assert.equal(host.calls.filter((call) => call === `PUT /v1/vms/${id}/mounts`).length, sent)
  const conflicts = [
    await attach(owner, id, other.id),
    await attach(owner, id, disk.id, '/mnt/data', { sub_path: 'x' }),
    await attach(owner, id, disk.id, '/mnt/data', { read_only: true }),
    await attach(owner, id, other.id, '/mnt/data/below'),
    await attach(owner, id, disk.id, '/mnt'),
  ]
  for (const { status, body } of conflicts) assert.deepEqual([status, body.data.code], [409, 'path_in_use'])
  assert.match(conflicts[0]!.body.data.message, new RegExp(`^mount_path /mnt/data is used by disk ${disk.name}$`))
  assert.equal((await attach(owner, id, disk.id, '/mnt/data2')).status, 200)
  assert.equal((await list(owner, id)).length, 2)
})

test('what is wrong with an attach is named: fields 400, disk 404, status 409', async () => {
  const disk = await register(owner)
  const id = await newSandbox()
  const fields: [field: string, body: object][] = [
    ['disk_id', { disk_id: '', mount_path: '/mnt' }],
    ['disk_id', { mount_path: '/mnt' }],
    ['mount_path', { disk_id: disk.id }],
    ['mount_path', { disk_id: disk.id, mount_path: 'mnt' }],
    ['mount_path', { disk_id: disk.id, mount_path: '/mnt/../etc' }],
    ['mount_path', { disk_id: disk.id, mount_path: '/' }],
    ['mount_path', { disk_id: disk.id, mount_path: '/proc/1' }],
    ['sub_path', { disk_id: disk.id, mount_path: '/mnt', sub_path: 'a/../b' }],
  ]
  for (const [field, body] of fields) {
    const response = await send('POST', `/v1/sandboxes/${id}/disks`, owner, body)
    assert.deepEqual([response.status, Object.keys(response.body.data)], [400, [field, 'code']], JSON.stringify(body))
  }

  const theirs = await register(await user({ plan: 'pro' }))
  const absent = await attach(owner, id, 'none')
  assert.deepEqual([absent.status, absent.body.data.message], [404, 'disk not found'])
  assert.deepEqual((await attach(owner, id, theirs.id)).body, absent.body)
  await pause(id)
  const paused = await attach(owner, id, disk.id)
  assert.deepEqual([paused.status, paused.body.data.message], [409, 'sandbox is paused, expected running'])
  assert.deepEqual(await list(owner, id), [])
})

test('a detach needs the path of a mount; what is not attached there is 404', async () => {
  const [disk, other] = [await register(owner), await register(owner)]
  const id = await newSandbox()
  await attach(owner, id, disk.id, '/mnt/one')
  await attach(owner, id, disk.id, '/mnt/two')

  assert.equal((await send('DELETE', `/v1/sandboxes/${id}/disks/${disk.id}`, owner)).status, 400)
  assert.deepEqual(Object.keys((await detach(owner, id, disk.id, 'mnt')).body.data), ['mount_path', 'code'])
  for (const [name, path] of [
    [disk.id, '/mnt/three'],
    [other.id, '/mnt/one'],
    ['none', '/mnt/one'],
  ] as const) {
    assert.deepEqual((await detach(owner, id, name, path)).body.data, {
      ...{ message: 'disk attachment not found', code: 'not_found' },
    })
  }
  assert.equal((await detach(owner, id, disk.name, '/mnt/one')).status, 200)
  assert.equal((await detach(owner, id, disk.name, '/mnt/one')).status, 404)
  assert.deepEqual(
    (await list(owner, id)).map(({ mount_path }) => mount_path),
    ['/mnt/two'],
  )
})

test('a detach says what could not be saved', async () => {
  const disk = await register(owner)
  const id = await newSandbox()
  await attach(owner, id, disk.id)
  await waitForMount(owner, id, 'mounted')
  host.hooks.beforeUnmount = (vm) => (vm === id ? '2 files are not saved:\na, b' : undefined)

  const { body } = await detach(owner, id, disk.id)
  host.hooks = {}

  assert.deepEqual(body.data, { detached: true, warning: '2 files are not saved: a, b' })
})

test('a sandbox has at most so many mounts', async () => {
  const disk = await register(owner)
  const id = await newSandbox()
  for (let n = 0; n < DISK_MOUNTS_MAX; n++) assert.equal((await attach(owner, id, disk.id, `/mnt/${n}`)).status, 200)

  const more = await attach(owner, id, disk.id, '/mnt/more')

  assert.deepEqual([more.status, more.body.data.code], [429, 'cap_reached'])
  const page = (await get(`/v1/sandboxes/${id}/disks?limit=3&offset=1`, owner.key)).body.data
  assert.deepEqual(page.pagination, { total: DISK_MOUNTS_MAX, limit: 3, offset: 1, count: 3 })
  assert.deepEqual(
    page.data.map(({ mount_path }: { mount_path: string }) => mount_path),
    [14, 13, 12].map((n) => `/mnt/${n}`),
  )
})

test('a disk that is attached cannot be deleted, until its last sandbox is', async () => {
  const disk = await register(owner)
  const [one, two] = [await newSandbox(), await newSandbox()]
  await attach(owner, one, disk.id)
  await attach(owner, two, disk.id)
  await pause(two)

  const refused = await remove(owner, disk.id)
  assert.deepEqual(
    [refused.status, refused.body.data],
    [409, { message: 'disk still attached', code: 'still_attached' }],
  )
  await detach(owner, one, disk.id)
  assert.equal((await remove(owner, disk.id)).status, 409)
  await send('DELETE', `/v1/sandboxes/${two}`, owner)
  assert.deepEqual((await remove(owner, disk.id)).body.data, { deleted: true })
})

test('a sandbox is created with disks; the response does not wait for them', async () => {
  const [disk, other] = [await register(owner), await register(owner)]
  const mounted = Promise.withResolvers<void>()
  host.hooks.beforeMount = () => mounted.promise

  const id = await newSandbox({
    disks: [
      { disk_id: disk.name, mount_path: '/mnt/one', sub_path: 'p/' },
      { disk_id: other.id, mount_path: '/mnt/two', read_only: true },
    ],
  })

  assert.deepEqual((await list(owner, id)).map(({ name, mount_status }) => [name, mount_status]).sort(), [
    [disk.name, 'pending'],
    [other.name, 'pending'],
  ])
  mounted.resolve()
  host.hooks = {}
  assert.equal((await waitForMount(owner, id, 'mounted', '/mnt/one')).sub_path, 'p')
  assert.equal((await waitForMount(owner, id, 'mounted', '/mnt/two')).read_only, true)
})

test('a create does not fail because a disk cannot be mounted', async () => {
  const disk = await register(owner, { credentials: { access_key: 'key', secret_key: WRONG_SECRET } })

  const id = await newSandbox({ disks: [{ disk_id: disk.id, mount_path: '/mnt/data' }] })

  assert.match((await waitForMount(owner, id, 'failed')).mount_error ?? '', /refused the credentials/)
})

test('disks of a create are checked before anything is created', async () => {
  const disk = await register(owner)
  const theirs = await register(await user({ plan: 'pro' }))
  const entry = (mount_path: string, more = {}) => ({ disk_id: disk.id, mount_path, ...more })
  const cases: [disks: object[], text: string][] = [
    [[{ disk_id: 'none', mount_path: '/mnt' }], 'disk not found: none'],
    [[{ disk_id: theirs.id, mount_path: '/mnt' }], `disk not found: ${theirs.id}`],
    [[entry('/mnt/a'), entry('/mnt//a/')], 'mount_path /mnt/a is used twice'],
    [[entry('/mnt/a'), entry('/mnt/a/b')], 'mount_path /mnt/a/b overlaps /mnt/a'],
    [[entry('mnt')], 'mount_path must be an absolute path'],
    [[entry('/mnt', { sub_path: '..' })], 'sub_path must not contain ".."'],
  ]
  const count = host.vms.size

  for (const [disks, text] of cases) {
    const { status, body } = await create(owner, { disks })
    assert.deepEqual([status, body.data], [400, { disks: text, code: 'validation_failed' }])
  }
  const many = Array.from({ length: DISK_MOUNTS_MAX + 1 }, (_, n) => entry(`/mnt/${n}`))
  assert.equal((await create(owner, { disks: many })).status, 400)
  assert.equal((await create(owner, { disks: null })).status, 200)
  assert.equal(host.vms.size, count + 1)
})

test('a create that fails leaves no attachment, and emits nothing', async () => {
  const disk = await register(owner)
  host.hooks.beforeCreate = () => {
    throw new Error('failure requested by the test')
  }

  const { status } = await create(owner, { disks: [{ disk_id: disk.id, mount_path: '/mnt' }] })
  host.hooks = {}

  assert.ok(status >= 500)
  assert.equal((await remove(owner, disk.id)).status, 200)
})

test('a host that cannot mount disks is 503 for attach and for create with disks, and for nothing else', async () => {
  const disk = await register(owner)
  const id = await newSandbox()
  await setHostDisks(false)

  const attached = await attach(owner, id, disk.id)
  const created = await create(owner, { disks: [{ disk_id: disk.id, mount_path: '/mnt' }] })

  for (const { status, body } of [attached, created]) {
    assert.deepEqual([status, body], [503, { status: 'error', message: 'disks API not configured', code: 503 }])
  }
  assert.equal((await create(owner, { disks: [] })).status, 200)
  assert.equal((await get(`/v1/disks/${disk.id}`, owner.key)).status, 200)
  await setHostDisks(true)
  assert.equal((await attach(owner, id, disk.id)).status, 200)
})

test('for other users the disks of a sandbox are not found', async () => {
  const bob = await user()
  const id = await newSandbox()

  for (const response of [
    await get(`/v1/sandboxes/${id}/disks`, bob.key),
    await attach(bob, id, 'x'),
    await detach(bob, id, 'x'),
  ]) {
    assert.deepEqual([response.status, response.body.data.message], [404, 'sandbox not found'])
  }
  const empty = await get(`/v1/sandboxes/${id}/disks?limit=500`, owner.key)
  assert.deepEqual(empty.body.data, { data: [], pagination: { total: 0, limit: 500, offset: 0, count: 0 } })
})

test('a repeated Idempotency-Key attaches once, even after a detach', async () => {
  const disk = await register(owner)
  const id = await newSandbox()
  const post = () =>
    app.inject({
      method: 'POST',
      url: `/v1/sandboxes/${id}/disks`,
      headers: { ...owner.headers, 'idempotency-key': `attach-${id}` },
      payload: { disk_id: disk.id, mount_path: '/mnt/data' },
    })

  const first = await post()
  await detach(owner, id, disk.id)
  const second = await post()

  assert.deepEqual([first.statusCode, second.payload], [200, first.payload])
  assert.deepEqual(await list(owner, id), [])
})

test('events say which disk was attached where, also of sandboxes that are created and destroyed', async () => {
  const who = await user({ plan: 'pro' })
  const disk = await register(who, { name: 'evented' })
  const { id: endpoint } = (await send('POST', '/v1/webhook-endpoints', who, { url: 'https://hooks.invalid/' })).body
    .data
  const id = (await create(who, { disks: [{ disk_id: disk.id, mount_path: '/mnt/a' }] })).body.data.id
  await attach(who, id, disk.id, '/mnt/b')
  await attach(who, id, disk.id, '/mnt/b')
  await detach(who, id, disk.id, '/mnt/b')
  await send('DELETE', `/v1/sandboxes/${id}`, who)
  await remove(who, disk.id)

  const { rows } = await deps.database.pool.query(
    'select payload::json as payload, audit_log_id from webhook_deliveries where endpoint_id = $1 order by seq',
    [endpoint],
  )
  const events = rows.filter(({ payload }) => payload.event.startsWith('disk.'))
  const base = { id: disk.id, name: 'evented', disk_id: disk.id }
  const at = (mount_path: string) => ({ ...base, sandbox_id: id, mount_path })
  assert.deepEqual(
    events.map(({ payload }) => [payload.event, payload.data]),
    [
      ['disk.attach', at('/mnt/a')],
      ['disk.attach', at('/mnt/b')],
      ['disk.detach', at('/mnt/b')],
      ['disk.detach', at('/mnt/a')],
      ['disk.delete', base],
    ],
  )
  for (const { audit_log_id } of events) assert.match(audit_log_id, /^aud_/)
  assert.ok(!JSON.stringify(rows).includes('a-secret-key'))
})
