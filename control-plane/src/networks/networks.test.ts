import assert from 'node:assert/strict'
import { test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { setBalance } from '../testing/set-balance.ts'
import { createHostedApp } from '../testing/with-host.ts'
import { reconcileNetworks } from './reconcile.ts'

const { app, deps, host, user, create, send, get } = await createHostedApp({ host: { memMib: 10_000_000 } })
const owner = await user({ plan: 'local' })

let networkCount = 0
async function newNetwork(who = owner): Promise<{ id: string; name: string }> {
  return (await send('POST', '/v1/networks', who, { name: `net-${++networkCount}` })).body.data
}
const newSandbox = async (body = {}) =>
  (await create(owner, body)).body.data as { id: string; name: string; ip: string }
const attach = (sandbox: { id: string }, network: string) =>
  send('POST', `/v1/sandboxes/${sandbox.id}/networks`, owner, { id: network })
const detach = (sandbox: { id: string }, network: string) =>
  send('DELETE', `/v1/sandboxes/${sandbox.id}/networks/${network}`, owner)
const membersOf = async (network: string) => (await get(`/v1/networks/${network}`, owner.key)).body.data.members
const waitForStatus = (id: string, status: string) =>
  until(async () => (await get(`/v1/sandboxes/${id}`, owner.key)).body.data.status === status)
/** The networks that the host of a sandbox enforces, each with the names of its members. */
const enforced = (sandbox: { id: string }): Record<string, string[]> =>
  Object.fromEntries(
    host.vms
      .get(sandbox.id)!
      .network.network.networks.map(({ id, members }) => [id, members.map((member) => member.name)]),
  )
const names = (...sandboxes: { name: string }[]) => sandboxes.map((sandbox) => sandbox.name)

test('a network can be created, listed, read by id and name, and deleted', async () => {
  const who = await user({ plan: 'pro' })
  const created = (await send('POST', '/v1/networks', who, { name: 'backend' })).body.data

  assert.match(created.id, /^net-/)
  assert.deepEqual({ ...created, id: '', created_at: '' }, { id: '', name: 'backend', created_at: '', member_count: 0 })
  const list = (await get('/v1/networks', who.key)).body.data
  assert.deepEqual(list, { data: [created], pagination: { total: 1, limit: 50, offset: 0, count: 1 } })
  for (const name of [created.id, 'backend']) {
    assert.deepEqual((await get(`/v1/networks/${name}`, who.key)).body.data, { ...created, members: [] })
  }
  assert.deepEqual((await send('DELETE', '/v1/networks/backend', who)).body.data, { ok: true })
  assert.equal((await get('/v1/networks/backend', who.key)).status, 404)
  assert.equal((await send('DELETE', '/v1/networks/backend', who)).status, 404)
})

test('a name is unique per user and can be reused after a delete', async () => {
  const [one, other] = [await user({ plan: 'pro' }), await user({ plan: 'pro' })]
  await send('POST', '/v1/networks', one, { name: 'shared' })

  const twice = await send('POST', '/v1/networks', one, { name: 'shared' })
  assert.deepEqual([twice.status, twice.body.data.name], [400, 'network name shared is already in use'])
  assert.equal((await send('POST', '/v1/networks', other, { name: 'shared' })).status, 200)
  await send('DELETE', '/v1/networks/shared', one)
  assert.equal((await send('POST', '/v1/networks', one, { name: 'shared' })).status, 200)
  for (const name of ['', '-a', 'Upper', 'a b', 'x'.repeat(64), undefined]) {
    const { status, body } = await send('POST', '/v1/networks', one, { name })
    assert.equal(status, 400, String(name))
    assert.ok(body.data.name)
  }
})

test("another user's network is not found by any route", async () => {
  const theirs = await newNetwork(await user({ plan: 'pro' }))
  const mine = await newSandbox()

  assert.equal((await get(`/v1/networks/${theirs.id}`, owner.key)).status, 404)
  assert.equal((await send('DELETE', `/v1/networks/${theirs.id}`, owner)).status, 404)
  const attached = await attach(mine, theirs.id)
  assert.deepEqual([attached.status, attached.body.data.message], [404, 'network not found'])
  const created = await create(owner, { networks: [{ id: theirs.id }] })
  assert.deepEqual([created.status, created.body.data.networks], [400, `network not found: ${theirs.id}`])
})

test('plans limit concurrent and daily networks, and credit is required', async () => {
  const free = await user({ plan: 'free' })
  assert.equal((await send('POST', '/v1/networks', free, { name: 'one' })).status, 200)
  const more = await send('POST', '/v1/networks', free, { name: 'two' })
  assert.deepEqual([more.status, more.body.data.code], [429, 'cap_reached'])
  for (let n = 2; n <= 10; n++) {
    await send('DELETE', '/v1/networks/one', free)
    assert.equal((await send('POST', '/v1/networks', free, { name: 'one' })).status, 200)
  }
  await send('DELETE', '/v1/networks/one', free)
  const daily = await send('POST', '/v1/networks', free, { name: 'one' })
  assert.deepEqual([daily.status, daily.body.data.code], [429, 'daily_cap_reached'])

  const poor = await user({ plan: 'pro' })
  await setBalance(deps.db, poor.id, 0)
  assert.equal((await send('POST', '/v1/networks', poor, { name: 'one' })).status, 402)
})

test('an attach reaches the hosts of all members before its response, and repeating it changes nothing', async () => {
  const network = await newNetwork()
  const [a, b] = [await newSandbox(), await newSandbox()]

  assert.deepEqual((await attach(a, network.id)).body.data, { ok: true })
  assert.deepEqual((await attach(b, network.name)).body.data, { ok: true })
  assert.deepEqual((await attach(b, network.id)).body.data, { ok: true })

  assert.deepEqual(enforced(a), { [network.id]: names(a, b) })
  assert.deepEqual(enforced(b), { [network.id]: names(a, b) })
  assert.equal(host.vms.get(b.id)!.network.network.networks[0]!.name, network.name)
  assert.deepEqual(
    await membersOf(network.id),
    [a, b].map(({ id, name, ip }) => ({ sandbox_id: id, name, status: 'running', ip })),
  )
  assert.equal((await get(`/v1/networks/${network.id}`, owner.key)).body.data.member_count, 2)
})

test('a sandbox created with networks has its peers before it runs, and they have it', async () => {
  const [one, two] = [await newNetwork(), await newNetwork()]
  const first = await newSandbox({ networks: [{ id: one.name }] })
  let before: unknown
  host.hooks.beforeCreate = (body) => {
    before = body.network.networks.map((network) => network.id).sort()
  }

  const second = await newSandbox({ networks: [{ id: one.id }, { id: two.name }, { id: one.name }] })
  host.hooks = {}

  assert.deepEqual(before, [one.id, two.id].sort())
  assert.deepEqual(enforced(second), { [one.id]: names(first, second), [two.id]: names(second) })
  assert.deepEqual(enforced(first), { [one.id]: names(first, second) })
})

test('a detach reaches both sides, allows deleting the network at once, and requires a membership', async () => {
  const network = await newNetwork()
  const [a, b] = [await newSandbox(), await newSandbox()]
  for (const sandbox of [a, b]) await attach(sandbox, network.id)

  assert.deepEqual((await detach(a, network.name)).body.data, { ok: true })

  assert.deepEqual(enforced(a), {})
  assert.deepEqual(enforced(b), { [network.id]: names(b) })
  assert.equal((await detach(a, network.id)).status, 404)
  const full = await send('DELETE', `/v1/networks/${network.id}`, owner)
  assert.deepEqual([full.status, full.body.data.code], [409, 'has_members'])
  assert.equal(full.body.data.message, 'network still has members')
  await detach(b, network.id)
  assert.equal((await send('DELETE', `/v1/networks/${network.id}`, owner)).status, 200)
})

test('membership survives pause and resume and can be removed while paused; only a running sandbox can be attached', async () => {
  const [retained, detached] = [await newNetwork(), await newNetwork()]
  const [a, b] = [await newSandbox(), await newSandbox()]
  for (const sandbox of [a, b]) await attach(sandbox, retained.id)
  await attach(a, detached.id)
  await send('POST', `/v1/sandboxes/${a.id}/pause`, owner)
  await waitForStatus(a.id, 'paused')

  assert.deepEqual((await membersOf(retained.id))[0].status, 'paused')
  const rejected = await attach(a, detached.id)
  assert.deepEqual([rejected.status, rejected.body.data.message], [409, 'sandbox is paused, expected running'])
  assert.equal((await detach(a, detached.id)).status, 200)
  await send('POST', `/v1/sandboxes/${a.id}/resume`, owner)
  await waitForStatus(a.id, 'running')

  assert.deepEqual(enforced(a), { [retained.id]: names(a, b) })
  assert.deepEqual(enforced(b), { [retained.id]: names(a, b) })
})

test('a fork is a member only of the networks in its request', async () => {
  const network = await newNetwork()
  const source = await newSandbox({ networks: [{ id: network.id }] })
  await send('POST', `/v1/sandboxes/${source.id}/pause`, owner)
  await waitForStatus(source.id, 'paused')

  const child = (await send('POST', `/v1/sandboxes/${source.id}/fork`, owner)).body.data
  const body = { networks: [{ id: network.name }], count: 2 }
  const [one, two] = (await send('POST', `/v1/sandboxes/${source.id}/fork`, owner, body)).body.data
  for (const { id } of [child, one, two]) await waitForStatus(id, 'running')

  assert.deepEqual(enforced(child), {})
  for (const member of [one, two])
    assert.deepEqual(enforced(member)[network.id]!.sort(), names(source, one, two).sort())
  const unknown = await send('POST', `/v1/sandboxes/${source.id}/fork`, owner, { networks: [{ id: 'nowhere' }] })
  assert.deepEqual([unknown.status, unknown.body.data.networks], [400, 'network not found: nowhere'])
})

test('a destroyed sandbox leaves its networks at once, and its peers lose it', async () => {
  const [network, unshared] = [await newNetwork(), await newNetwork()]
  const [a, b] = [await newSandbox(), await newSandbox()]
  for (const sandbox of [a, b]) await attach(sandbox, network.id)
  await attach(a, unshared.id)

  await send('DELETE', `/v1/sandboxes/${a.id}`, owner)
  assert.equal((await send('DELETE', `/v1/networks/${unshared.id}`, owner)).status, 200)
  await reconcileNetworks.run(deps)

  assert.deepEqual(enforced(b), { [network.id]: names(b) })
})

test('a failed create leaves no membership behind', async () => {
  const network = await newNetwork()
  host.hooks.beforeCreate = () => {
    throw new Error('failed on purpose')
  }
  const failed = await create(owner, { networks: [{ id: network.id }] })
  host.hooks = {}

  assert.equal(failed.status, 502)
  assert.equal((await send('DELETE', `/v1/networks/${network.id}`, owner)).status, 200)
})

test('after concurrent attaches and detaches, every host enforces what the database says', async () => {
  const networks = await Promise.all([newNetwork(), newNetwork(), newNetwork()])
  const sandboxes = await Promise.all(Array.from({ length: 6 }, () => newSandbox()))
  const operations = Array.from({ length: 60 }, (_, n) => async () => {
    const [sandbox, network] = [sandboxes[(n * 5) % 6]!, networks[(n * 7) % 3]!]
    const { status } = n % 3 === 2 ? await detach(sandbox, network.id) : await attach(sandbox, network.id)
    assert.ok(status === 200 || status === 404, String(status))
  })

  await Promise.all(operations.map((run) => run()))
  const destroyed = sandboxes.pop()!
  await send('DELETE', `/v1/sandboxes/${destroyed.id}`, owner)
  await reconcileNetworks.run(deps)

  const expected: Record<string, string[]> = {}
  for (const { id } of networks) {
    expected[id] = (await membersOf(id)).map((member: { name: string }) => member.name).sort()
  }
  for (const sandbox of sandboxes) {
    const found = Object.fromEntries(Object.entries(enforced(sandbox)).map(([id, members]) => [id, members.sort()]))
    const mine = Object.fromEntries(Object.entries(expected).filter(([, members]) => members.includes(sandbox.name)))
    assert.deepEqual(found, mine)
  }
})

test('two creates with the same Idempotency-Key create one network', async () => {
  const createWithKey = () =>
    app.inject({
      method: 'POST',
      url: '/v1/networks',
      headers: { ...owner.headers, 'idempotency-key': 'network-1' },
      payload: { name: 'by-key' },
    })

  const [first, second] = [await createWithKey(), await createWithKey()]

  assert.equal(second.statusCode, 200)
  assert.deepEqual(second.json(), first.json())
})
