import assert from 'node:assert/strict'
import { test } from 'node:test'
import { findShape, SHAPES } from '@warren/protocol'
import { createTestApp } from '../testing/app.ts'
import { allowsShape, PLAN_NAMES, PLANS, planLimits } from '../users/plans.ts'

const { deps, user, get } = await createTestApp()

test('all eleven shapes are listed without a credential, in pages', async () => {
  const all = (await get('/v1/shapes')).body.data
  const two = (await get('/v1/shapes?limit=2&offset=1')).body.data

  assert.deepEqual(
    all.data.map((shape: { id: string }) => shape.id),
    [
      's-0.25vcpu-512mb',
      's-0.5vcpu-1gb',
      's-1vcpu-256mb',
      's-1vcpu-1gb',
      's-1vcpu-2gb',
      's-2vcpu-2gb',
      's-2vcpu-4gb',
      's-4vcpu-4gb',
      's-4vcpu-8gb',
      's-8vcpu-8gb',
      's-8vcpu-16gb',
    ],
  )
  assert.deepEqual(all.data[2], { id: 's-1vcpu-256mb', vcpu: 1, mem_mib: 256, default_disk_mib: 10240 })
  assert.deepEqual(two.pagination, { total: 11, limit: 2, offset: 1, count: 2 })
  assert.deepEqual(two.data, all.data.slice(1, 3))
})

test('a plan allows the shapes up to its largest', () => {
  const allowed = Object.fromEntries(
    PLAN_NAMES.map((plan) => [plan, SHAPES.filter((shape) => allowsShape(planLimits(plan), shape.id)).length]),
  )

  assert.deepEqual(allowed, { local: 11, internal: 11, free: 4, beginner: 8, pro: 10, enterprise: 11 })
  assert.equal(allowsShape(planLimits('local'), 's-1024vcpu'), false)
})

test('only shapes with less than one core show a CPU quota', async () => {
  const { data } = (await get('/v1/shapes')).body.data
  const quotas = data.filter((shape: object) => 'cpu_quota_pct' in shape)

  assert.deepEqual(
    quotas.map((shape: { id: string; cpu_quota_pct: number }) => [shape.id, shape.cpu_quota_pct]),
    [
      ['s-0.25vcpu-512mb', 25],
      ['s-0.5vcpu-1gb', 50],
    ],
  )
})

test('the quota of a shape is a percentage of one core', () => {
  assert.deepEqual(
    ['s-0.25vcpu-512mb', 's-0.5vcpu-1gb', 's-4vcpu-8gb'].map((id) => findShape(id)?.cpu_quota_pct),
    [25, 50, 400],
  )
})

test('plans have their documented limits', () => {
  const row = ({
    sandboxes,
    networks,
    disks,
    templates,
    max_disk_mib,
    webhook_endpoints,
  }: (typeof PLANS)['free' | 'pro']) => [
    ...[sandboxes, networks, disks, templates].map((cap) => `${cap.concurrent}/${cap.per_day}`),
    max_disk_mib / 1024,
    webhook_endpoints,
  ]

  assert.deepEqual(row(PLANS.free), ['1/10', '1/10', '0/0', '0/0', 10, 2])
  assert.deepEqual(row(PLANS.beginner as never), ['5/50', '5/50', '5/50', '5/50', 30, 4])
  assert.deepEqual(row(PLANS.pro), ['20/200', '20/200', '20/200', '20/200', 50, 6])
  assert.deepEqual(row(PLANS.enterprise as never), [
    '30/300',
    '30/300',
    '30/300',
    '30/300',
    60,
    Number.POSITIVE_INFINITY,
  ])
})

test('enabled root file systems are listed, with the default', async () => {
  const before = (await get('/v1/rootfs')).body.data
  await deps.db.updateTable('rootfs').set({ enabled: true }).where('name', '=', 'alpine:3.20').execute()
  const after = (await get('/v1/rootfs')).body.data

  assert.deepEqual(before.rootfs, ['debian:13', 'devbox:1'])
  assert.equal(before.default, 'debian:13')
  assert.deepEqual(
    before.entries.map((entry: { name: string }) => entry.name),
    before.rootfs,
  )
  assert.deepEqual(after.rootfs, ['debian:13', 'devbox:1', 'alpine:3.20'])
})

test('operators can list hosts with their free memory; other users cannot', async () => {
  const operator = await user({ operator: true })
  await deps.db
    .insertInto('hosts')
    .values([
      {
        id: '10.0.0.1',
        region: 'eu',
        status: 'active',
        mem_mib: 1000,
        reserved_mib: 300,
        vm_count: 2,
        rootfses: ['debian:13'],
      },
      { id: '10.0.0.2', region: 'eu', status: 'dead', mem_mib: 500 },
    ])
    .execute()

  const { data, pagination } = (await get('/v1/hosts', operator.key)).body.data

  assert.equal(pagination.total, 2)
  assert.deepEqual(
    new Map(data.map((host: { id: string }) => [host.id, host])),
    new Map([
      ['10.0.0.1', { id: '10.0.0.1', status: 'active', free_mib: 700, vm_count: 2, rootfses: ['debian:13'] }],
      ['10.0.0.2', { id: '10.0.0.2', status: 'dead', free_mib: 500, vm_count: 0 }],
    ] as never),
  )
  assert.equal((await get('/v1/hosts', (await user()).key)).body.data.code, 'operator_required')
})
