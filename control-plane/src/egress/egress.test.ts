import assert from 'node:assert/strict'
import { test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { reconcileNetworks } from '../networks/reconcile.ts'
import { FakeHostFailure } from '../testing/fake-host.ts'
import { createHostedApp } from '../testing/with-host.ts'

const { deps, host, user, create, send, get } = await createHostedApp({ host: { memMib: 10_000_000 } })
const owner = await user({ plan: 'local' })

const networkOf = (id: string) => host.vms.get(id)!.network.network
const rulesOf = (id: string) => networkOf(id).egress
const waitForStatus = (id: string, status: string) =>
  until(async () => (await get(`/v1/sandboxes/${id}`, owner.key)).body.data.status === status)

test('rules of a create are in force when the VM starts, and are returned as given', async () => {
  const rules = ['Example.COM', '*.example.org:443', '10.1.2.3:5432', '192.0.2.0/24']
  let before: string[] = []
  host.hooks.beforeCreate = (body) => {
    before = body.network.egress
  }

  const { id, egress } = (await create(owner, { egress: rules })).body.data
  host.hooks = {}

  assert.deepEqual(egress, rules)
  assert.deepEqual(before, rules)
  assert.deepEqual((await get(`/v1/sandboxes/${id}/egress`, owner.key)).body.data, { id, egress: rules })
})

test('new rules reach the host before the response, and every view has them', async () => {
  const { id } = (await create(owner)).body.data

  const put = await send('PUT', `/v1/sandboxes/${id}/egress`, owner, { egress: ['none'] })

  assert.deepEqual(put.body.data, { id, egress: ['none'] })
  assert.deepEqual(rulesOf(id), ['none'])
  assert.deepEqual((await get(`/v1/sandboxes/${id}`, owner.key)).body.data.egress, ['none'])
})

test('a rule that opens nothing is accepted with a warning, in each response to a list', async () => {
  const rules = ['example.com', '10.1.2.3:5432']
  const warning = /^"10\.1\.2\.3:5432" opens nothing: .* \(WARREN_EGRESS_PRIVATE_CIDRS\)$/

  const created = await create(owner, { egress: rules })
  const { id } = created.body.data
  const put = await send('PUT', `/v1/sandboxes/${id}/egress`, owner, { egress: rules })
  const forked = await send('POST', `/v1/sandboxes/${id}/fork`, owner, { live: true, egress: rules })
  const harmless = await send('PUT', `/v1/sandboxes/${id}/egress`, owner, { egress: ['example.com'] })

  for (const { status, body } of [created, put, forked]) {
    assert.ok(status < 300)
    assert.deepEqual(body.data.egress, rules)
    assert.equal(body.data.warnings.length, 1)
    assert.match(body.data.warnings[0], warning)
  }
  assert.equal('warnings' in harmless.body.data, false)
  assert.equal('warnings' in (await get(`/v1/sandboxes/${id}`, owner.key)).body.data, false)
})

test('open egress is returned as it was set', async () => {
  const { id } = (await create(owner, { egress: ['none'] })).body.data

  for (const [given, shown] of [
    [{ egress: null }, []],
    [{ egress: ['*'] }, ['*']],
    [{ egress: [] }, []],
    [{}, []],
  ]) {
    const { body } = await send('PUT', `/v1/sandboxes/${id}/egress`, owner, given)
    assert.deepEqual(body.data.egress, shown)
    assert.deepEqual(rulesOf(id), shown)
  }
})

test('the error names an invalid rule, and nothing changes', async () => {
  const { id } = (await create(owner, { egress: ['example.com'] })).body.data

  for (const [rules, what] of [
    [['ok.example', 'example.com:22'], /"example.com:22": .*80 or 443/],
    [['https://example.com'], /"https:\/\/example.com"/],
    [['none', 'example.com'], /"none"/],
    [['10.0.0.0/33'], /prefix/],
  ] as const) {
    const { status, body } = await send('PUT', `/v1/sandboxes/${id}/egress`, owner, { egress: rules })
    assert.equal(status, 400)
    assert.match(body.data.egress, what)
    assert.equal(body.data.code, 'validation_failed')
    const created = await create(owner, { egress: rules })
    assert.equal(created.status, 400)
    assert.match(created.body.data.egress, what)
  }
  assert.deepEqual(rulesOf(id), ['example.com'])
})

test('rules set while paused are in force before the guest continues', async () => {
  const { id } = (await create(owner)).body.data
  await send('POST', `/v1/sandboxes/${id}/pause`, owner)
  await waitForStatus(id, 'paused')

  const put = await send('PUT', `/v1/sandboxes/${id}/egress`, owner, { egress: ['example.com'] })
  assert.equal(put.status, 200)
  let before: string[] = []
  host.hooks.beforeResume = (_id, body) => {
    before = body.network.egress
  }
  await send('POST', `/v1/sandboxes/${id}/resume`, owner)
  await waitForStatus(id, 'running')
  host.hooks = {}

  assert.deepEqual(before, ['example.com'])
})

test('rules set during a resume are in force when the sandbox is running', async () => {
  const { id } = (await create(owner)).body.data
  await send('POST', `/v1/sandboxes/${id}/pause`, owner)
  await waitForStatus(id, 'paused')
  const begun = Promise.withResolvers<void>()
  const proceed = Promise.withResolvers<void>()
  host.hooks.beforeResume = async () => {
    begun.resolve()
    await proceed.promise
  }

  await send('POST', `/v1/sandboxes/${id}/resume`, owner)
  await begun.promise
  await send('PUT', `/v1/sandboxes/${id}/egress`, owner, { egress: ['none'] })
  proceed.resolve()
  await waitForStatus(id, 'running')
  host.hooks = {}

  assert.deepEqual(rulesOf(id), ['none'])
})

test('a fork has the rules of its source unless its request has rules', async () => {
  const { id } = (await create(owner, { egress: ['example.com'] })).body.data
  await send('POST', `/v1/sandboxes/${id}/pause`, owner)
  await waitForStatus(id, 'paused')

  const same = (await send('POST', `/v1/sandboxes/${id}/fork`, owner)).body.data
  const open = (await send('POST', `/v1/sandboxes/${id}/fork`, owner, { egress: null })).body.data
  const other = (await send('POST', `/v1/sandboxes/${id}/fork`, owner, { egress: ['none'] })).body.data
  for (const child of [same, open, other]) await waitForStatus(child.id, 'running')

  assert.deepEqual(rulesOf(same.id), ['example.com'])
  assert.deepEqual(rulesOf(open.id), [])
  assert.deepEqual(rulesOf(other.id), ['none'])
})

test('a host that could not be reached gets the rules later', async () => {
  const { id } = (await create(owner)).body.data
  host.hooks.beforeNetwork = () => {
    throw new FakeHostFailure('internal')
  }
  const put = await send('PUT', `/v1/sandboxes/${id}/egress`, owner, { egress: ['none'] })
  assert.equal(put.status, 200)
  assert.deepEqual(rulesOf(id), [])

  host.hooks = {}
  await reconcileNetworks.run(deps)

  assert.deepEqual(rulesOf(id), ['none'])
})

test('a restarted host agent gets the rules again', async () => {
  const { id } = (await create(owner, { egress: ['none'] })).body.data
  await host.stop()
  await host.start()
  host.vms.get(id)!.network.network = { ...networkOf(id), revision: -1, egress: [] }

  await until(async () => {
    await reconcileNetworks.run(deps)
    return rulesOf(id)[0] === 'none'
  })
})

test('a destroyed sandbox takes no rules', async () => {
  const { id } = (await create(owner)).body.data
  await send('DELETE', `/v1/sandboxes/${id}`, owner)
  await waitForStatus(id, 'destroyed')

  const { status, body } = await send('PUT', `/v1/sandboxes/${id}/egress`, owner, { egress: [] })

  assert.equal(status, 409)
  assert.match(body.data.message, /^sandbox is destroyed/)
})

test('decisions and flows come from the host; a sandbox that does not run is 409', async () => {
  const { id } = (await create(owner, { egress: ['none'] })).body.data
  const decision = {
    at: '2026-01-01T00:00:00.000Z',
    via: 'dns' as const,
    destination: 'evil.example',
    protocol: 'udp',
    port: 53,
    reason: 'not_allowed' as const,
    count: 3,
  }
  const flow = { destination: '192.0.2.1', protocol: 'tcp', port: 443, count: 2 }
  host.vms.get(id)!.network.decisions = [decision]
  host.vms.get(id)!.network.flows = [flow]

  const decisions = await get(`/v1/sandboxes/${id}/egress/decisions`, owner.key)
  const flows = await get(`/v1/sandboxes/${id}/egress/flows`, owner.key)
  await send('POST', `/v1/sandboxes/${id}/pause`, owner)
  await waitForStatus(id, 'paused')
  const paused = await get(`/v1/sandboxes/${id}/egress/decisions`, owner.key)

  assert.deepEqual(decisions.body.data, { id, decisions: [decision] })
  assert.deepEqual(flows.body.data, { id, flows: [flow] })
  assert.equal(paused.status, 409)
})
