import assert from 'node:assert/strict'
import { test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { insertSandbox } from '../testing/sandboxes.ts'
import { createHostedApp } from '../testing/with-host.ts'

const MIB = 1024 * 1024
const { deps, host, user, create, send, get } = await createHostedApp({ host: { memMib: 10_000_000 } })
const owner = await user({ plan: 'pro' })

const metricsOf = async (id: string) => (await get(`/v1/sandboxes/${id}/metrics`, owner.key)).body.data
const seriesOf = async (id: string) => (await get(`/v1/sandboxes/${id}/metrics/timeseries`, owner.key)).body.data
const waitForStatus = (id: string, status: string) =>
  until(async () => (await get(`/v1/sandboxes/${id}`, owner.key)).body.data.status === status)
const isRecent = (time: string) => Math.abs(Date.parse(time) - Date.now()) < 60_000

test('a running sandbox has what its host measured, beside the limits of its shape', async () => {
  const { id } = (await create(owner, { shape: 's-0.5vcpu-1gb' })).body.data
  Object.assign(host.vms.get(id)!.metrics, { cores: 0.2, memoryBytes: 256 * MIB })

  const { as_of, ...metrics } = await metricsOf(id)

  assert.deepEqual(metrics, {
    sandbox_id: id,
    memory_bytes: 256 * MIB,
    memory_limit_bytes: 1024 * MIB,
    memory_pct: 25,
    cpu_cores_used: 0.2,
    cpu_cores_allocated: 0.5,
    cpu_pct: 40,
  })
  assert.ok(isRecent(as_of), as_of)
})

test('a share is at most 100 %, although the VMM needs more than its guest may use', async () => {
  const { id } = (await create(owner)).body.data
  Object.assign(host.vms.get(id)!.metrics, { cores: 1.02, memoryBytes: 290 * MIB })

  const { memory_pct, cpu_pct, cpu_cores_used, memory_bytes } = await metricsOf(id)

  assert.deepEqual([memory_pct, cpu_pct, cpu_cores_used, memory_bytes], [100, 100, 1.02, 290 * MIB])
})

test('the series has the points of the host, oldest first', async () => {
  const { id } = (await create(owner)).body.data
  await seriesOf(id)

  const { points, ...series } = await seriesOf(id)

  assert.deepEqual(series, { sandbox_id: id, step_seconds: 10, window_seconds: 3600 })
  assert.equal(points.length, 2)
  assert.ok(points[0].ts <= points[1].ts)
  const { ts: _, ...point } = points[0]
  assert.deepEqual(point, {
    cpu_cores_used: 0.5,
    memory_bytes: 64 * MIB,
    memory_used_guest_bytes: 32 * MIB,
    memory_limit_bytes: 256 * MIB,
    net_bytes_in_per_sec: 10,
    net_bytes_out_per_sec: 20.5,
    storage_bytes: 700 * MIB,
    storage_limit_bytes: 10_240 * MIB,
  })
})

const zeros = (id: string) => ({
  sandbox_id: id,
  memory_bytes: 0,
  memory_limit_bytes: 0,
  memory_pct: 0,
  cpu_cores_used: 0,
  cpu_cores_allocated: 0,
  cpu_pct: 0,
})

test('a paused sandbox has zeros and the points of the time before; reading them does not resume it', async () => {
  const { id } = (await create(owner)).body.data
  await seriesOf(id)
  await send('POST', `/v1/sandboxes/${id}/pause`, owner)
  await waitForStatus(id, 'paused')

  const { as_of, ...metrics } = await metricsOf(id)
  const { points } = await seriesOf(id)

  assert.deepEqual(metrics, zeros(id))
  assert.ok(isRecent(as_of), as_of)
  assert.equal(points.length, 1)
  assert.equal((await get(`/v1/sandboxes/${id}`, owner.key)).body.data.status, 'paused')
})

test('a destroyed sandbox has zeros and no points', async () => {
  const { id } = (await create(owner)).body.data
  await seriesOf(id)
  await send('DELETE', `/v1/sandboxes/${id}`, owner)
  await waitForStatus(id, 'destroyed')

  const { as_of: _, ...metrics } = await metricsOf(id)

  assert.deepEqual(metrics, zeros(id))
  assert.deepEqual((await seriesOf(id)).points, [])
})

test('without an answer of the host the values are 0, the limits known, and the series empty', async () => {
  const { id } = (await create(owner)).body.data
  await host.stop()
  const { as_of, ...metrics } = await metricsOf(id)
  const { points } = await seriesOf(id)
  await host.start()

  assert.deepEqual(metrics, { ...zeros(id), memory_limit_bytes: 256 * MIB, cpu_cores_allocated: 1 })
  assert.ok(isRecent(as_of), as_of)
  assert.deepEqual(points, [])
})

test('a host that has lost the VM, or has never been heard of, answers with zeros too', async () => {
  const { id } = (await create(owner)).body.data
  host.vms.delete(id)
  const { id: elsewhere } = await insertSandbox(deps.db, owner.id, 'running')

  for (const one of [id, elsewhere]) {
    const { memory_bytes, cpu_cores_used } = await metricsOf(one)
    assert.deepEqual([memory_bytes, cpu_cores_used], [0, 0])
    assert.deepEqual((await seriesOf(one)).points, [])
  }
})

test('reading metrics does not count as a use of the sandbox', async () => {
  const alone = await createHostedApp({ startWorker: false })
  const someone = await alone.user()
  const { id } = (await alone.create(someone)).body.data
  alone.deps.activity.drain()

  for (const path of ['metrics', 'metrics/timeseries']) await alone.get(`/v1/sandboxes/${id}/${path}`, someone.key)

  assert.deepEqual([...alone.deps.activity.drain().keys()], [])
})

test('metrics are for the owner and the access token of the sandbox', async () => {
  const { id } = (await create(owner)).body.data
  const { token } = (await send('POST', `/v1/sandboxes/${id}/access-token`, owner)).body.data
  const stranger = await user()

  for (const path of [`/v1/sandboxes/${id}/metrics`, `/v1/sandboxes/${id}/metrics/timeseries`]) {
    assert.equal((await get(path, token)).status, 200)
    assert.equal((await get(path, stranger.key)).status, 404)
    assert.equal((await get(path)).status, 401)
    assert.equal((await get(path.replace(id, `sb-${'0'.repeat(26)}`), owner.key)).status, 404)
  }
})
