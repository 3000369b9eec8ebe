/** Caps, the queue, retries, and what builds hold on their hosts. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { passTime } from '@warren/kit/testing/pass-time'
import { until } from '@warren/kit/testing/until'
import { newId, templateImageName, vmmMemoryMib } from '@warren/protocol'
import type { TestResponse, TestUser } from '../../testing/app.ts'
import { templateApi } from '../../testing/templates.ts'
import { createHostedApp } from '../../testing/with-host.ts'
import { setLimit } from '../../users/set-limit.ts'
import { deleteOrphanedBuilds } from './clean-up.ts'

const hosted = await createHostedApp()
const { deps, host, user, get, send, create, assertNothingLeft } = hosted
const { dockerfile, submit, start, build, untilStatus, getView } = templateApi(hosted)

test.beforeEach(() => {
  host.hooks = {}
})

const RESERVED_MIB = vmmMemoryMib({ vcpu: deps.config.buildVcpu, mem_mib: deps.config.buildMemMib }, host.accel)
const never = () => new Promise<never>(() => {})
const submitAll = (who: TestUser, text?: string): Promise<TestResponse[]> =>
  Promise.all(Array.from({ length: 50 }, () => submit(who, text)))
const remove = (who: TestUser, id: string) => send('DELETE', `/v1/templates/${id}`, who)
const countStatuses = (responses: { status: number }[]) =>
  Object.fromEntries([...Map.groupBy(responses, ({ status }) => status)].map(([status, all]) => [status, all.length]))
const rowOf = (id: string) => deps.db.selectFrom('templates').selectAll().where('id', '=', id).executeTakeFirstOrThrow()

test('of 50 concurrent submissions exactly two are accepted: the third build is 429 build_limit', async () => {
  const ada = await user({ plan: 'pro' })
  host.hooks = { beforeBuildStep: never }

  const responses = await submitAll(ada, dockerfile('RUN echo 1'))

  assert.deepEqual(countStatuses(responses), { 200: 2, 429: 48 })
  const refused = responses.find(({ status }) => status === 429)!
  assert.deepEqual(refused.body.data, {
    message: 'build cap reached: pro allows 2 at once',
    code: 'build_limit',
  })
  const plan = (await get('/v1/plan', ada.key)).body.data
  assert.deepEqual(plan.template_builds, { concurrent: { limit: 2, used: 2 } })
  host.hooks = {}
  for (const { body } of responses.filter(({ status }) => status === 200)) await remove(ada, body.data.id)
  assert.equal((await submit(ada, dockerfile('RUN exit 1'))).status, 200)
  await until(async () => (await get('/v1/plan', ada.key)).body.data.template_builds.concurrent.used === 0)
})

test('of 50 concurrent submissions exactly as many as the caps of templates are accepted', async () => {
  const ada = await user({ plan: 'beginner' })
  await setLimit(deps.db, ada.id, 'template_builds', Number.POSITIVE_INFINITY)

  const concurrent = await submitAll(ada)

  assert.deepEqual(countStatuses(concurrent), { 200: 5, 429: 45 })
  assert.equal(concurrent.find(({ status }) => status === 429)!.body.data.code, 'cap_reached')

  await setLimit(deps.db, ada.id, 'templates', Number.POSITIVE_INFINITY)
  await setLimit(deps.db, ada.id, 'templates_per_day', 8)
  const daily = await submitAll(ada)

  assert.deepEqual(countStatuses(daily), { 200: 3, 429: 47 })
  assert.equal(daily.find(({ status }) => status === 429)!.body.data.code, 'daily_cap_reached')
  const { templates } = (await get('/v1/plan', ada.key)).body.data
  assert.deepEqual([templates.concurrent.used, templates.per_day], [8, { limit: 8, used: 8 }])
  await until(async () => (await get('/v1/plan', ada.key)).body.data.template_builds.concurrent.used === 0)
  await assertNothingLeft()
})

test('only as many builds run as the operator allows, and users take turns', async () => {
  const [ada, bob, eve] = [await user(), await user(), await user()]
  for (const { id } of [ada, bob, eve]) await setLimit(deps.db, id, 'template_builds', 10)
  const started: string[] = []
  const gates = new Map<string, () => void>()
  let runningMax = 0
  host.hooks = {
    beforeBuildStep: (id) => {
      started.push(id)
      const { promise, resolve } = Promise.withResolvers<void>()
      gates.set(id, resolve)
      runningMax = Math.max(runningMax, gates.size)
      return promise
    },
  }
  const owners = new Map<string, string>()
  const submitFor = async (who: TestUser, name: string) => {
    const id = await start(who, dockerfile('RUN echo 1'), { name, no_cache: true })
    owners.set(id, name)
  }
  const release = (name: string) => {
    const id = [...gates.keys()].find((one) => owners.get(one) === name)!
    gates.get(id)!()
    gates.delete(id)
  }
  const startedNames = () => started.map((id) => owners.get(id))

  await submitFor(ada, 'ada-1')
  await until(() => started.length === 1)
  await submitFor(ada, 'ada-2')
  await until(() => started.length === 2)
  for (const name of ['ada-3', 'ada-4']) await submitFor(ada, name)
  await submitFor(bob, 'bob-1')
  await submitFor(bob, 'bob-2')
  await submitFor(eve, 'eve-1')
  await passTime(600, 'no further build starts while two are running')
  assert.deepEqual(startedNames(), ['ada-1', 'ada-2'])

  // Ada has one running, bob none: bob is next, although ada-3 is older. If they have the same number, the oldest is next.
  for (const [ended, next] of [
    ['ada-1', 'bob-1'],
    ['ada-2', 'ada-3'],
    ['bob-1', 'bob-2'],
    ['ada-3', 'ada-4'],
    ['bob-2', 'eve-1'],
  ] as const) {
    release(ended)
    await until(() => startedNames().at(-1) === next, `${next} starts after ${ended}, not ${startedNames().at(-1)}`)
  }
  release('ada-4')
  release('eve-1')

  for (const id of owners.keys()) await until(async () => (await rowOf(id)).status === 'ready')
  assert.equal(runningMax, 2)
  await assertNothingLeft()
})

test('a build holds memory and an address until it has ended', async () => {
  const ada = await user()
  const gate = Promise.withResolvers<void>()
  let ip = ''
  host.hooks = {
    beforeBuild: (_id, body) => {
      ip = body.ip
    },
    beforeBuildStep: () => gate.promise,
  }
  const id = await start(ada, dockerfile('RUN echo 1'))
  await until(() => ip !== '')

  const hostRow = () => deps.db.selectFrom('hosts').selectAll().executeTakeFirstOrThrow()
  const before = await hostRow()
  const row = await rowOf(id)
  assert.deepEqual([row.ip, row.reserved_mib, row.host_id], [ip, RESERVED_MIB, host.id])
  assert.ok(before.reserved_mib >= RESERVED_MIB)
  await deps.db.updateTable('hosts').set({ address_cursor: 0 }).execute()
  assert.notEqual((await create(ada)).body.data.ip, ip)
  gate.resolve()
  await untilStatus(ada, id, 'ready')

  const after = await rowOf(id)
  assert.deepEqual([after.ip, after.reserved_mib], [null, 0])
  await assertNothingLeft()
})

test('an interrupted build is tried three times, then it has failed', async () => {
  const ada = await user()
  let attempts = 0
  host.hooks = {
    beforeBuildStep: () => {
      attempts++
      return never()
    },
  }
  const id = await start(ada, dockerfile('RUN echo 1'))

  for (let attempt = 1; attempt <= 3; attempt++) {
    await until(() => attempts === attempt, `attempt ${attempt} runs`)
    await host.templateBuilds.interruptAll()
  }
  const failed = await untilStatus(ada, id, 'failed')

  assert.equal(failed.failure_reason, 'the host agent restarted')
  const rows = await deps.db.selectFrom('template_attempts').selectAll().where('template_id', '=', id).execute()
  assert.deepEqual(
    rows.map(({ attempt, failure, ended_at }) => [attempt, failure, ended_at !== null]),
    [1, 2, 3].map((attempt) => [attempt, 'interrupted', true]),
  )
  await assertNothingLeft()
})

test('a host that is away is waited for', async () => {
  const ada = await user()
  await host.stop()
  const id = await start(ada, dockerfile('RUN echo 1'))
  // Either it was claimed before the host was marked dead, or it waits.
  await until(async () => {
    const { status } = await deps.db.selectFrom('hosts').select('status').executeTakeFirstOrThrow()
    return status === 'dead' || (await getView(ada, id)).status === 'building'
  })

  await host.start()

  await untilStatus(ada, id, 'ready')
  await assertNothingLeft()
})

test('a build that its host does not finish has failed, and is cancelled when the host answers again', async () => {
  const ada = await user()
  let reached = false
  host.hooks = {
    beforeBuildStep: () => {
      reached = true
      return never()
    },
  }
  const id = await start(ada, dockerfile('RUN echo 1'))
  await until(() => reached)
  await host.stop()
  await deps.db
    .updateTable('templates')
    .set({ attempt_started_at: new Date(Date.now() - 3 * 3_600_000) })
    .where('id', '=', id)
    .execute()

  const failed = await untilStatus(ada, id, 'failed')
  assert.equal(failed.failure_reason, 'the host did not answer in time')
  assert.equal((await rowOf(id)).reserved_mib, RESERVED_MIB)
  await host.start()

  await until(async () => (await rowOf(id)).reserved_mib === 0, 'its memory is released')
  assert.equal(host.templateBuilds.get(id).failure?.reason, failed.failure_reason)
  await assertNothingLeft()
})

for (const stage of ['beforeBuild', 'beforeBuildStep', 'beforeBuildPacking', 'beforeBuildDone'] as const) {
  test(`a template can be deleted at any time (${stage}), and nothing of it is left`, async () => {
    const ada = await user()
    let reached = false
    const gate = Promise.withResolvers<void>()
    host.hooks = {
      [stage]: () => {
        reached = true
        return gate.promise
      },
    }
    const id = await start(ada, dockerfile('RUN echo 1'))
    await until(() => reached)

    assert.equal((await remove(ada, id)).status, 200)
    if (stage === 'beforeBuild') gate.resolve()

    await until(async () => (await rowOf(id)).host_id === null, 'it has left its host')
    gate.resolve()
    const isImage = ({ name }: { name: string }) => name === templateImageName(id)
    await until(() => !host.templateBuilds.builds.has(id) && !host.images.some(isImage), 'the host has forgotten it')
    const { template_builds } = (await get('/v1/plan', ada.key)).body.data
    assert.equal(template_builds.concurrent.used, 0)
    await assertNothingLeft()
  })
}

test('builds and images that no template accounts for are deleted, others are not', async () => {
  const ada = await user()
  const id = await build(ada)
  const [orphan, image] = [newId('template'), newId('template')]
  await host.templateBuilds.start(orphan, {
    ...{ attempt: 1, image: 'debian:13', steps: [], env: {}, notes: [], cache_owner: ada.id, no_cache: false },
    ...{ vcpu: 1, mem_mib: 256, cpu_quota_pct: 100, disk_mib: 1024, ip: '100.64.9.9', bases: [] },
    network: { revision: 0, egress: [], networks: [], bandwidth: { quota_bytes: -1, used_bytes: 0, ingress_bytes: 0 } },
    limits: { steps_ms: 1000, rootfs_bytes: 1000, log_bytes: 1000 },
  })
  host.images.push({ name: templateImageName(image), state: 'ready' })

  await deleteOrphanedBuilds.run(deps)

  assert.ok(!host.templateBuilds.builds.has(orphan))
  assert.ok(host.calls.includes(`DELETE /v1/builds/${image}`))
  assert.ok(host.templateBuilds.builds.has(id))
})

test('what the operator sets reaches the host', async () => {
  const set = await createHostedApp({
    config: { buildVcpu: 4, buildMemMib: 4096, buildLimitSeconds: 60, templateShapes: ['s-1vcpu-1gb'] },
  })
  const ada = await set.user()
  const bodies: object[] = []
  set.host.hooks = { beforeBuild: (_id, body) => void bodies.push(body) }

  const id = await templateApi(set).build(ada, dockerfile('RUN echo 1'))

  const { vcpu, mem_mib, cpu_quota_pct, limits, bases, cache_owner, network } = bodies[0] as Record<string, unknown>
  assert.deepEqual(
    { vcpu, mem_mib, cpu_quota_pct, limits, bases, cache_owner, network },
    {
      vcpu: 4,
      mem_mib: 4096,
      cpu_quota_pct: 400,
      limits: { steps_ms: 60_000, rootfs_bytes: 5_000_000_000, log_bytes: 10 * 1024 * 1024 },
      bases: [{ vcpu: 1, mem_mib: 1024, disk_mib: 10_240 }],
      cache_owner: ada.id,
      network: {
        revision: 0,
        egress: [],
        networks: [],
        bandwidth: { quota_bytes: deps.config.bandwidthQuotaBytes, used_bytes: 0, ingress_bytes: 0 },
      },
    },
  )
  const metrics = await set.deps.metrics.registry.metrics()
  assert.match(metrics, /warren_template_builds_total\{outcome="ready"\} 1/)
  assert.match(metrics, /warren_template_steps_total\{result="run"\} 1/)
  assert.match(metrics, /warren_template_build_seconds_count\{outcome="ready"\} 1/)
  assert.ok(id)
})
