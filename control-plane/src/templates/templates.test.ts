import assert from 'node:assert/strict'
import { test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { newId, templateImageName } from '@warren/protocol'
import { watchHosts } from '../hosts/heartbeat.ts'
import { setBalance } from '../testing/set-balance.ts'
import { templateApi } from '../testing/templates.ts'
import { createHostedApp } from '../testing/with-host.ts'

const hosted = await createHostedApp()
const { deps, host, user, get, send, create, assertNothingLeft } = hosted
const { dockerfile, submit, submitWith, getView, untilStatus, start, build } = templateApi(hosted)

test.beforeEach(() => {
  host.hooks = {}
})

const actionsOf = async (userId: string) => {
  const rows = await deps.db
    .selectFrom('webhook_deliveries')
    .innerJoin('webhook_endpoints', 'webhook_endpoints.id', 'endpoint_id')
    .select(['event_action', 'payload', 'audit_log_id'])
    .where('user_id', '=', userId)
    .orderBy('seq')
    .execute()
  return rows.map(({ event_action, payload, audit_log_id }) => ({
    action: event_action,
    data: JSON.parse(payload).data,
    audit: audit_log_id,
  }))
}

test('a template is pending, building, then ready, and a webhook reports each step', async () => {
  const ada = await user()
  await send('POST', '/v1/webhook-endpoints', ada, { url: 'https://hooks.invalid/' })
  const gate = Promise.withResolvers<void>()
  host.hooks = { beforeBuildStep: () => gate.promise }

  const submitted = await submit(ada, dockerfile('RUN echo hello'))
  const { id } = submitted.body.data
  const building = await untilStatus(ada, id, 'building')
  gate.resolve()
  const ready = await untilStatus(ada, id, 'ready')

  const common = { id, name: 'tools', base: 'debian:13' }
  const { created_at } = submitted.body.data
  const unbuilt = { ...common, ext4_size_bytes: 0, created_at, built_at: null }
  assert.deepEqual([submitted.status, submitted.body.data], [200, { ...unbuilt, status: 'pending' }])
  assert.match(id, /^tpl_[0-9A-Z]{26}$/)
  assert.deepEqual(building, { ...unbuilt, status: 'building' })
  assert.deepEqual([ready.status, ready.ext4_size_bytes], ['ready', 150_000_000])
  assert.ok(ready.built_at)
  const events = await actionsOf(ada.id)
  const about = (status: string) => ({ id, name: 'tools', template_id: id, status })
  assert.deepEqual(
    events.map(({ action, data }) => [action, data]),
    [
      ['template.submit', about('pending')],
      ['template.build.start', about('building')],
      ['template.build.complete', about('ready')],
    ],
  )
  // All belong to the call that submitted it.
  assert.equal(new Set(events.map(({ audit }) => audit)).size, 1)
  assert.match(events[0]!.audit!, /^aud_/)
  await assertNothingLeft()
})

test('a build that fails says why, counts in no concurrent cap and leaves no image', async () => {
  const ada = await user({ plan: 'beginner' })
  await send('POST', '/v1/webhook-endpoints', ada, { url: 'https://hooks.invalid/' })

  const id = await start(ada, dockerfile('RUN exit 3'))
  const failed = await untilStatus(ada, id, 'failed')

  assert.equal(failed.failure_reason, 'RUN exit 3 ended with exit code 3 (line 2)')
  assert.deepEqual([failed.built_at, failed.ext4_size_bytes], [null, 0])
  const complete = (await actionsOf(ada.id)).at(-1)!
  assert.deepEqual(
    [complete.action, complete.data.status, complete.data.failure_reason],
    ['template.build.complete', 'failed', failed.failure_reason],
  )
  const { templates, template_builds } = (await get('/v1/plan', ada.key)).body.data
  assert.deepEqual([templates.concurrent.used, templates.per_day.used, template_builds.concurrent.used], [0, 1, 0])
  assert.ok(!host.images.some(({ name }) => name === templateImageName(id)))
  await assertNothingLeft()
})

test('a Dockerfile or a name that is not valid is 400, names the line, and creates nothing', async () => {
  const ada = await user()
  const faults = [
    [{ name: 'Tools' }, 'name'],
    [{ name: '' }, 'name'],
    [{ name: 'x'.repeat(64) }, 'name'],
    [{ dockerfile: '' }, 'dockerfile'],
    [{ dockerfile: 'FROM debian:13\nCOPY . /app' }, 'dockerfile'],
    [{ dockerfile: 'FROM debian:13\nFROM debian:13' }, 'dockerfile'],
    [{ dockerfile: 'ARG V=13\nFROM debian:$V' }, 'dockerfile'],
    [{ dockerfile: 'FROM busybox:1' }, 'dockerfile'],
    [{ dockerfile: `FROM debian:13\n#${'x'.repeat(65_536)}` }, 'dockerfile'],
  ] as const

  for (const [body, field] of faults) {
    const { status, body: response } = await submit(ada, dockerfile(), body)
    assert.deepEqual([status, response.data.code, typeof response.data[field]], [400, 'validation_failed', 'string'])
  }
  const copy = await submit(ada, dockerfile('COPY . /app'))
  assert.match(copy.body.data.dockerfile, /^line 2, COPY: /)
  const missing = await submit(ada, 'FROM alpine:3.20')
  assert.match(missing.body.data.dockerfile, /images import alpine:3.20 --name alpine:3.20$/)
  assert.equal((await get('/v1/templates', ada.key)).body.data.pagination.total, 0)
})

test('a Dockerfile of 64 KiB is accepted however JSON spells it, and a larger one is 400', async () => {
  const ada = await user()
  const begin = dockerfile('RUN true ')
  const full = begin + '\u0001'.repeat(64 * 1024 - Buffer.byteLength(begin))

  const accepted = await submit(ada, full)
  const refused = await submit(ada, full.repeat(5))

  assert.equal(accepted.status, 200, JSON.stringify(accepted.body))
  assert.deepEqual([refused.status, typeof refused.body.data.dockerfile], [400, 'string'])
})

test('a base that is being built on the host is worth a retry', async () => {
  const ada = await user()
  host.images.push({ name: 'devbox:1', state: 'building' })
  await watchHosts.run(deps)

  const { status, headers, body } = await submit(ada, 'FROM devbox:1')

  assert.deepEqual([status, body.message, headers['retry-after']], [503, 'devbox:1 is still being built', '2'])
})

test('lists contain the templates twice, newest first, in pages', async () => {
  const ada = await user()
  const ids = []
  for (let n = 0; n < 3; n++) ids.push(await build(ada, dockerfile(`RUN echo ${n}`), { name: `tools-${n}` }))

  const { data } = (await get('/v1/templates?limit=2', ada.key)).body
  const rest = (await get('/v1/templates?limit=2&offset=2', ada.key)).body.data

  assert.deepEqual(
    data.templates.map((one: { id: string }) => one.id),
    [ids[2], ids[1]],
  )
  assert.deepEqual(data.data, data.templates)
  assert.deepEqual(data.pagination, { total: 3, limit: 2, offset: 0, count: 2 })
  assert.deepEqual([rest.templates[0].id, rest.pagination.count], [ids[0], 1])
})

test('a name means the latest ready build, or the latest if none is ready', async () => {
  const ada = await user()
  const first = await build(ada, dockerfile('RUN echo 1'))
  const second = await build(ada, dockerfile('RUN echo 2'))
  const broken = await start(ada, dockerfile('RUN exit 1'))
  await untilStatus(ada, broken, 'failed')

  assert.equal((await getView(ada, 'tools')).id, second)
  await send('DELETE', '/v1/templates/tools', ada)
  assert.equal((await getView(ada, 'tools')).id, first)
  await send('DELETE', `/v1/templates/${first}`, ada)
  assert.equal((await getView(ada, 'tools')).id, broken)
})

test('the Dockerfile is returned only on request', async () => {
  const ada = await user()
  const text = dockerfile('RUN echo "ä"')
  const id = await start(ada, text)

  assert.equal((await send('GET', `/v1/templates/${id}?include=dockerfile`, ada)).body.data.dockerfile, text)
  assert.equal((await send('GET', `/v1/templates/${id}`, ada)).body.data.dockerfile, undefined)
  assert.equal((await send('GET', `/v1/templates/${id}?include=more`, ada)).status, 400)
})

test("someone else's template is not found, and cannot be a base or a root file system", async () => {
  const [ada, bob] = [await user(), await user()]
  const id = await build(ada)
  const absent = newId('template')

  for (const one of [id, 'tools', absent]) {
    for (const [method, path] of [
      ['GET', ''],
      ['DELETE', ''],
      ['GET', '/logs'],
    ] as const) {
      const { status, body } = await send(method, `/v1/templates/${one}${path}`, bob)
      assert.deepEqual([status, body.data], [404, { message: 'template not found', code: 'not_found' }])
    }
    const created = await create(bob, { rootfs: one })
    assert.deepEqual([created.status, created.body.data.rootfs], [400, `unknown rootfs or template: ${one}`])
    assert.match((await submit(bob, `FROM ${one}`)).body.data.dockerfile, /cannot be a base/)
  }
})

test('a sandbox is made from a template by its name or id, and shows which', async () => {
  const ada = await user()
  const old = await build(ada, dockerfile('RUN echo old'))
  const id = await build(ada, dockerfile('RUN echo new'))

  const byName = await create(ada, { rootfs: 'tools' })
  const byId = await create(ada, { rootfs: old })
  const small = await create(ada, { rootfs: 'tools', disk_mib: 100 })

  assert.deepEqual([byName.status, byName.body.data.rootfs, byName.body.data.template_id], [200, 'tools', id])
  assert.deepEqual([byId.status, byId.body.data.rootfs, byId.body.data.template_id], [200, old, old])
  assert.deepEqual(
    [byName, byId].map(({ body }) => host.vms.get(body.data.id)!.body.image),
    [id, old].map(templateImageName),
  )
  assert.deepEqual([small.status, small.body.data.disk_mib], [400, 'must be at least 256 to hold tools'])
  assert.equal((await create(ada)).body.data.template_id, undefined)
})

test('a template that is not ready is not a root file system', async () => {
  const ada = await user()
  host.hooks = { beforeBuildStep: () => new Promise(() => {}) }
  const id = await start(ada, dockerfile('RUN echo 1'))

  assert.equal((await create(ada, { rootfs: 'tools' })).status, 400)
  assert.equal((await create(ada, { rootfs: id })).status, 400)
  await send('DELETE', `/v1/templates/${id}`, ada)
})

test('a fork remembers the template of its source', async () => {
  const ada = await user()
  const template = await build(ada)
  const { id } = (await create(ada, { rootfs: 'tools' })).body.data

  const { body } = await send('POST', `/v1/sandboxes/${id}/fork`, ada, { live: true })

  assert.deepEqual([body.data.rootfs, body.data.template_id], ['tools', template])
})

test('FROM names a template: its image is the base, its variables are known, and it may be deleted meanwhile', async () => {
  const ada = await user()
  const base = await build(ada, dockerfile('ENV TOOLS=/opt/tools', 'RUN echo base'), { name: 'base' })
  const bodies: { image: string; env: object }[] = []
  const gate = Promise.withResolvers<void>()
  host.hooks = {
    beforeBuild: async (_id, body) => {
      bodies.push(body)
      await gate.promise
    },
  }

  const id = await start(ada, 'FROM base\nENV BIN=$TOOLS/bin')
  await until(() => bodies.length > 0)
  await send('DELETE', `/v1/templates/${base}`, ada)
  const isKept = host.images.some(({ name }) => name === templateImageName(base))
  gate.resolve()
  const view = await untilStatus(ada, id, 'ready')

  assert.ok(isKept)
  assert.equal(view.base, 'base')
  assert.deepEqual(bodies[0]!.image, templateImageName(base))
  assert.deepEqual(bodies[0]!.env, { TOOLS: '/opt/tools', BIN: '/opt/tools/bin' })
  await until(() => !host.images.some(({ name }) => name === templateImageName(base)), 'the image of the base is gone')
})

test('a deleted template is gone at once, and its sandboxes live on', async () => {
  const ada = await user()
  await send('POST', '/v1/webhook-endpoints', ada, { url: 'https://hooks.invalid/', events: ['template.delete'] })
  const id = await build(ada)
  const sandbox = (await create(ada, { rootfs: id })).body.data.id

  const deleted = await send('DELETE', `/v1/templates/${id}`, ada)
  const again = await send('DELETE', `/v1/templates/${id}`, ada)

  assert.deepEqual([deleted.status, deleted.body.data], [200, { id, status: 'destroyed', ok: true }])
  assert.equal(again.status, 404)
  assert.equal((await create(ada, { rootfs: id })).status, 400)
  await until(() => !host.templateBuilds.builds.has(id), 'the host has forgotten it')
  const view = (await send('GET', `/v1/sandboxes/${sandbox}`, ada)).body.data
  assert.deepEqual([view.status, view.template_id], ['running', id])
  assert.deepEqual((await actionsOf(ada.id))[0]!.data, { id, name: 'tools', template_id: id, status: 'destroyed' })
})

test('a template that is deleted while a sandbox is made from it stays until the sandbox runs', async () => {
  const ada = await user()
  const id = await build(ada)
  const gate = Promise.withResolvers<void>()
  let reached = false
  host.hooks = {
    beforeCreate: () => {
      reached = true
      return gate.promise
    },
  }

  const creating = create(ada, { rootfs: id })
  await until(() => reached)
  await send('DELETE', `/v1/templates/${id}`, ada)
  assert.ok(host.images.some(({ name }) => name === templateImageName(id)))
  gate.resolve()

  assert.equal((await creating).status, 200)
  await until(() => !host.templateBuilds.builds.has(id), 'the host has forgotten it')
})

test('a repeated Idempotency-Key submits once', async () => {
  const ada = await user()
  const body = { name: 'tools', dockerfile: dockerfile() }

  const [first, second] = await Promise.all([
    submitWith({ 'idempotency-key': 'k' }, ada, body),
    submitWith({ 'idempotency-key': 'k' }, ada, body),
  ])
  const other = await submitWith({ 'idempotency-key': 'k' }, ada, { ...body, name: 'others' })

  assert.equal(first.body.data.id, second.body.data.id)
  assert.deepEqual([other.status, other.body.data.code], [409, 'idempotency_key_reused'])
  assert.equal((await get('/v1/templates', ada.key)).body.data.pagination.total, 1)
})

test('no_cache runs every step again', async () => {
  const ada = await user()
  const text = dockerfile('RUN echo 1', 'RUN echo 2')
  const counts = async (id: string) => {
    const row = await deps.db
      .selectFrom('template_attempts')
      .select(['steps_cached', 'steps_run'])
      .where('template_id', '=', id)
      .executeTakeFirstOrThrow()
    return [row.steps_cached, row.steps_run]
  }

  assert.deepEqual(await counts(await build(ada, text)), [0, 2])
  assert.deepEqual(await counts(await build(ada, text)), [2, 0])
  assert.deepEqual(await counts(await build(ada, text, { no_cache: true })), [0, 2])
  assert.deepEqual(await counts(await build(ada, text, { no_cache: null, base: 'ignored' })), [2, 0])
})

test('without credit a template cannot be created, and plan free has none', async () => {
  const [poor, free] = [await user(), await user({ plan: 'free' })]
  await setBalance(deps.db, poor.id, 0)

  const unpaid = await submit(poor)
  const capped = await submit(free)

  assert.deepEqual(
    [unpaid.status, unpaid.body.data.code, unpaid.body.data.message],
    [402, 'insufficient_credit', 'insufficient credit, add credit to create templates'],
  )
  assert.deepEqual([capped.status, capped.body.data.code], [429, 'cap_reached'])
  assert.equal(capped.headers['retry-after'], undefined)
})

test('submitting and deleting are in the audit log, refused calls too', async () => {
  const ada = await user()
  const id = await build(ada)
  await submit(ada, 'FROM nothing:1')
  await send('DELETE', `/v1/templates/${id}`, ada)

  const { data } = (await get('/v1/audit', ada.key)).body.data

  assert.deepEqual(
    data.map((entry: Record<string, unknown>) => [entry.action, entry.target, entry.outcome]),
    [
      ['template.delete', id, 'success'],
      ['template.submit', undefined, 'fail'],
      ['template.submit', id, 'success'],
    ],
  )
})
