import assert from 'node:assert/strict'
import { test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { SANDBOX_STATUSES } from '@warren/protocol'
import { addCredit } from '../credit/add.ts'
import { watchHosts } from '../hosts/heartbeat.ts'
import { insertSandbox } from '../testing/sandboxes.ts'
import { createHostedApp } from '../testing/with-host.ts'

const hosted = await createHostedApp({ config: { ingressDomain: 'box.test' } })
const { deps, host, user, create, send, get } = hosted

const ED25519 = 'ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHKBJTCQ2Nx3hJq2W7Bv0XsWn3mP5m0rC0vB7Gf0Xn9h'

const SPENT = { kind: 'adjustment', reason: 'spent' } as const

test('a create returns the full view of a running sandbox, and its VM is as requested', async () => {
  const ada = await user()

  const { status, body } = await create(ada, {
    shape: 's-0.5vcpu-1gb',
    name: 'web-1',
    disk_mib: 20_480,
    envs: { TOKEN: 'a-hidden-value', MODE: 'x' },
    ssh_pubkeys: [`${ED25519} ada`, `${ED25519} ada again`],
    egress: ['example.com', '10.0.0.0/8:443'],
    ingress_enabled: true,
    auto_pause_after_seconds: 600,
    networks: [],
    disks: [],
    bandwidth_quota_bytes: 0,
    region: 'eu',
    node_selector: 'ignored',
  })

  assert.equal(status, 200, JSON.stringify(body))
  const { warnings, ...created } = body.data
  const { id, ip, created_at, running_at, ...view } = created
  assert.match(id, /^sb-[0-9A-HJKMNP-TV-Z]{26}$/)
  assert.match(ip, /^100\.64\.\d+\.\d+$/)
  assert.ok(created_at <= running_at)
  assert.deepEqual(view, {
    name: 'web-1',
    status: 'running',
    vcpu: 1,
    mem_mib: 1024,
    disk_mib: 20_480,
    shape: 's-0.5vcpu-1gb',
    rootfs: 'debian:13',
    region: 'eu',
    ingress_enabled: true,
    ingress_url_template: `https://${id.slice(3).toLowerCase()}-<port>.box.test`,
    bandwidth_ingress_bytes: 0,
    bandwidth_quota_bytes: 5_368_709_120,
    auto_pause_after_seconds: 600,
    envs: ['TOKEN', 'MODE'],
    ssh_pubkeys: [`${ED25519} ada`],
    egress: ['example.com', '10.0.0.0/8:443'],
    created_by: ada.id,
    spawn_ms: 12.5,
    spawn_kind: 'clone',
  })
  assert.match(warnings[0], /^"10\.0\.0\.0\/8:443" opens nothing/)
  const vm = host.vms.get(id)!
  assert.deepEqual(
    { ...vm.body, id: '', ip: '' },
    {
      id: '',
      ip: '',
      fence: 1,
      vcpu: 1,
      mem_mib: 1024,
      cpu_quota_pct: 50,
      disk_mib: 20_480,
      image: 'debian:13',
      hostname: 'web-1',
      envs: { TOKEN: 'a-hidden-value', MODE: 'x' },
      ssh_pubkeys: [`${ED25519} ada`],
      network: {
        revision: 1,
        egress: ['example.com', '10.0.0.0/8:443'],
        networks: [],
        bandwidth: { quota_bytes: 5 * 1024 ** 3, used_bytes: 0, ingress_bytes: 0 },
      },
      limit_ms: 45_000,
    },
  )
  const { spawn_kind: _, ...stored } = created
  assert.deepEqual((await get(`/v1/sandboxes/${id}`, ada.key)).body.data, stored)
  assert.ok(!JSON.stringify(await deps.db.selectFrom('sandboxes').selectAll().execute()).includes('a-hidden-value'))
})

test('defaults are a generated name, the default image and 10 GiB; everything else is off or empty', async () => {
  const ada = await user()

  const { body } = await create(ada, { rootfs: '', envs: null, name: '', disk_mib: 0, host_id: '', region: '' })
  const unnamed = await create(ada, { name: null })

  for (const { name } of [body.data, unnamed.body.data]) assert.match(name, /^[a-z]+-[a-z]+$/)
  const { rootfs, disk_mib, envs, egress, ssh_pubkeys, ingress_enabled, region } = body.data
  assert.deepEqual(
    [rootfs, disk_mib, envs, egress, ssh_pubkeys, ingress_enabled],
    ['debian:13', 10_240, [], [], [], false],
  )
  assert.equal(region, 'eu')
  assert.ok(!('auto_pause_after_seconds' in body.data) && !('status_reason' in body.data))
})

test('every invalid field is 400 with the name of the field', async () => {
  const ada = await user()
  const faults: [object, string, RegExp, string?][] = [
    [{ shape: undefined }, 'shape', /^is required$/],
    [{ shape: 's-1000vcpu' }, 'shape', /^unknown shape: s-1000vcpu/],
    [{ shape: 5 }, 'shape', /must be string/],
    [{ rootfs: 'windows:95' }, 'rootfs', /^unknown rootfs or template: windows:95$/],
    [{ rootfs: 'ubuntu:26.04' }, 'rootfs', /^rootfs ubuntu:26.04 is disabled; .*warren images import/],
    [{ name: 'Upper' }, 'name', /1 to 63/],
    [{ name: '-dash' }, 'name', /1 to 63/],
    [{ name: 'a'.repeat(64) }, 'name', /1 to 63/],
    [{ name: 'a.b' }, 'name', /1 to 63/],
    [{ disk_mib: -1 }, 'disk_mib', /must be >= 0/],
    [{ disk_mib: 511 }, 'disk_mib', /^must be at least 512 to hold debian:13$/],
    [{ disk_mib: 10_240.5 }, 'disk_mib', /must be integer/],
    [{ envs: { '1X': 'x' } }, 'envs', /not a valid name/],
    [{ envs: { X: 5 } }, 'envs.X', /must be string/],
    [{ envs: { X: 'x'.repeat(4097) } }, 'envs', /^X must not be longer than 4096 bytes$/],
    [{ envs: { X: 'a\0b' } }, 'envs', /NUL/],
    [{ envs: manyEnvs(65, 1) }, 'envs', /64/],
    [{ envs: manyEnvs(17, 4096) }, 'envs', /65536 bytes in all/],
    [{ ssh_pubkeys: ['nonsense'] }, 'ssh_pubkeys', /^key 1 must begin with/],
    [{ ssh_pubkeys: [ED25519, `${ED25519}\n${ED25519}`] }, 'ssh_pubkeys', /^key 2 must be one line/],
    [{ egress: ['http://x'] }, 'egress', /without a scheme/],
    [{ egress: ['none', 'x.com'] }, 'egress', /only rule/],
    [{ auto_pause_after_seconds: 59 }, 'auto_pause_after_seconds', /must be >= 60/],
    [{ auto_pause_after_seconds: 86_401 }, 'auto_pause_after_seconds', /must be <= 86400/],
    [{ region: 'mars' }, 'region', /^must be one of eu, us$/],
    [{ bandwidth_quota_bytes: 1 }, 'bandwidth_quota_bytes', /must be <= 0/],
    [{ networks: [{ id: 'backend' }] }, 'networks', /^network not found: backend$/],
    [{ disks: [{ disk_id: 'data', mount_path: '/mnt' }] }, 'disks', /^disk not found: data$/],
    [{ disks: [{ disk_id: 'data', mount_path: 'mnt' }] }, 'disks', /^mount_path must be an absolute path$/],
    [
      { disks: ['/mnt', '//mnt/'].map((mount_path) => ({ disk_id: 'd', mount_path })) },
      'disks',
      /^mount_path \/mnt is used twice$/,
    ],
    [{ ingress_enabled: 'yes' }, 'ingress_enabled', /must be boolean/],
    [{ disk_mib: 60 * 1024 }, 'disk_mib', /^plan pro allows at most 51200$/, 'plan_limit'],
    [{ shape: 's-8vcpu-16gb' }, 'shape', /larger than plan pro allows/, 'plan_limit'],
  ]

  for (const [body, field, text, code = 'validation_failed'] of faults) {
    const response = await create(ada, body)
    const what = JSON.stringify([body, response.body])
    assert.deepEqual([response.status, response.body.data?.code], [400, code], what)
    assert.match(response.body.data[field] ?? '', text, what)
  }
  assert.equal((await get('/v1/whoami', ada.key)).body.data.stats.total, 0)
})

test('a name in use is 409; names of ended sandboxes and of other users are free', async () => {
  const ada = await user()
  const { body } = await create(ada, { name: 'web' })

  const again = await create(ada, { name: 'web' })
  const other = await create(await user(), { name: 'web' })
  await send('DELETE', `/v1/sandboxes/${body.data.id}`, ada)
  await until(async () => (await get(`/v1/sandboxes/${body.data.id}`, ada.key)).body.data.status === 'destroyed')
  const reused = await create(ada, { name: 'web' })

  assert.deepEqual(
    [again.status, again.body],
    [409, { status: 'fail', data: { message: 'sandbox name web is already in use', code: 'name_in_use' } }],
  )
  assert.deepEqual([other.status, reused.status], [200, 200])
})

test('the concurrent cap counts every sandbox that has not ended, and exceeding it is 429', async () => {
  for (const status of SANDBOX_STATUSES) {
    const ada = await user({ plan: 'free' })
    // Needs a live owner: an orphaned create would be rolled back instead of counted.
    await insertSandbox(deps.db, ada.id, status, { owner: deps.processId })

    const response = await create(ada)

    const ended = status === 'destroyed' || status === 'failed'
    assert.deepEqual([status, response.status], [status, ended ? 200 : 429], JSON.stringify(response.body))
    if (!ended) assert.equal(response.body.data.code, 'cap_reached')
    assert.equal(response.headers['retry-after'], undefined)
  }
})

test('the daily cap counts creates of the last 24 hours, destroyed sandboxes included, failed ones not', async () => {
  const ada = await user({ plan: 'free' })
  const hoursAgo = (hours: number) => new Date(Date.now() - hours * 3_600_000)
  const ended = (hours: number, running: boolean) =>
    insertSandbox(deps.db, ada.id, running ? 'destroyed' : 'failed', {
      created_at: hoursAgo(hours),
      running_at: running ? hoursAgo(hours) : null,
    })
  for (let i = 0; i < 9; i++) await ended(23, true)
  for (let i = 0; i < 5; i++) await ended(25, true)
  for (let i = 0; i < 20; i++) await ended(1, false)

  const tenth = await create(ada)
  await send('DELETE', `/v1/sandboxes/${tenth.body.data.id}`, ada)
  await until(async () => (await get(`/v1/sandboxes/${tenth.body.data.id}`, ada.key)).body.data.status === 'destroyed')
  const eleventh = await create(ada)

  assert.equal(tenth.status, 200)
  assert.deepEqual([eleventh.status, eleventh.body.data.code], [429, 'daily_cap_reached'])
})

test('without credit a create is 402, except on the local plan', async () => {
  const poor = await user()
  const local = await user({ plan: 'local' })
  for (const who of [poor, local]) await deps.db.transaction().execute((tx) => addCredit(tx, who.id, -500, SPENT))

  const refused = await create(poor)

  assert.deepEqual([refused.status, refused.body.data.code], [402, 'insufficient_credit'])
  assert.equal((await create(local)).status, 200)
})

test('checks run in this order: body, name, caps, credit, capacity', async () => {
  const ada = await user({ plan: 'free' })
  await insertSandbox(deps.db, ada.id, 'running', { name: 'taken' })
  await deps.db.transaction().execute((tx) => addCredit(tx, ada.id, -500, SPENT))
  const everything = { shape: 's-1vcpu-1gb', name: 'taken', egress: ['://'], region: 'us' }

  const statuses = [
    (await create(ada, everything)).status,
    (await create(ada, { ...everything, egress: [] })).status,
    (await create(ada, { ...everything, egress: [], name: 'free' })).status,
  ]
  await deps.db.updateTable('users').set({ plan: 'beginner' }).where('id', '=', ada.id).execute()
  statuses.push((await create(ada, { region: 'us' })).status)
  await deps.db.transaction().execute((tx) => addCredit(tx, ada.id, 1, { kind: 'top_up', reason: 'gift' }))
  statuses.push((await create(ada, { region: 'us' })).status)

  assert.deepEqual(statuses, [400, 409, 429, 402, 503])
})

test('host_id pins the sandbox to that host; an unknown host is 503', async () => {
  const ada = await user()

  assert.equal((await create(ada, { host_id: host.id })).status, 200)
  const unknown = await create(ada, { host_id: '10.9.9.9' })
  assert.deepEqual(
    [unknown.status, unknown.body],
    [503, { status: 'error', message: 'host 10.9.9.9 cannot fit s-1vcpu-256mb', code: 503 }],
  )
  assert.equal(unknown.headers['retry-after'], '2')
})

test('an image that is being built is 503 with Retry-After, and is enabled once it is ready', async () => {
  const ada = await user()
  const ready = host.images
  host.images = [...ready, { name: 'devbox:1', state: 'building', progress: 'unpacking' }]
  await watchHosts.run(deps)
  const building = await create(ada, { rootfs: 'devbox:1' })
  host.images = [...ready, { name: 'devbox:1', state: 'ready' }, { name: 'ubuntu:26.04', state: 'ready' }]
  await watchHosts.run(deps)
  const built = await create(ada, { rootfs: 'devbox:1' })
  const imported = await create(ada, { rootfs: 'ubuntu:26.04' })
  host.images = ready
  await watchHosts.run(deps)
  const gone = await create(ada, { rootfs: 'ubuntu:26.04' })

  assert.deepEqual(
    [building.status, building.body.message, building.headers['retry-after']],
    [503, 'rootfs devbox:1 is still being built', '2'],
  )
  assert.deepEqual([built.status, imported.status, gone.status], [200, 200, 400])
})

test('an imported image can be used while a host has it', async () => {
  const ada = await user()
  const ready = host.images
  const unknown = await create(ada, { rootfs: 'acme-tools:2' })

  host.images = [...ready, { name: 'acme-tools:2', state: 'ready' }, { name: 'acme-base:1', state: 'building' }]
  await watchHosts.run(deps)
  const listed = (await get('/v1/rootfs')).body.data
  const used = await create(ada, { rootfs: 'acme-tools:2' })
  host.images = ready
  await watchHosts.run(deps)
  const gone = await create(ada, { rootfs: 'acme-tools:2' })

  assert.equal(unknown.body.data.rootfs, 'unknown rootfs or template: acme-tools:2')
  assert.deepEqual(listed.rootfs, ['debian:13', 'devbox:1', 'acme-tools:2'])
  assert.deepEqual(listed.entries.at(-1), { name: 'acme-tools:2', description: 'Imported by the operator' })
  assert.deepEqual([used.status, used.body.data.rootfs], [200, 'acme-tools:2'])
  assert.match(
    gone.body.data.rootfs,
    /^rootfs acme-tools:2 is disabled; .*warren images import .* --name acme-tools:2$/,
  )
  assert.ok(!(await get('/v1/rootfs')).body.data.rootfs.includes('acme-tools:2'))
})

function manyEnvs(entries: number, bytes: number): Record<string, string> {
  return Object.fromEntries(Array.from({ length: entries }, (_, i) => [`E${i}`, 'x'.repeat(bytes)]))
}
