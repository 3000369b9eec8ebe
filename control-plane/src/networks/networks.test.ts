import assert from 'node:assert/strict'
import { test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { createHostedApp } from '../testing/with-host.ts'
import { reconcileNetworks } from './reconcile.ts'

const { app, deps, host, user, create, send, get } = await createHostedApp({ host: { memMib: 10_000_000 } })
const owner = await user({ plan: 'local' })

let made = 0
async function newNetwork(who = owner): Promise<{ id: string; name: string }> {
  return (await send('POST', '/v1/networks', who, { name: `net-${++made}` })).body.data
}
const newSandbox = async (body = {}) =>
  (await create(owner, body)).body.data as { id: string; name: string; ip: string }
const attach = (sandbox: { id: string }, network: string) =>
  send('POST', `/v1/sandboxes/${sandbox.id}/networks`, owner, { id: network })
const detach = (sandbox: { id: string }, network: string) =>
  send('DELETE', `/v1/sandboxes/${sandbox.id}/networks/${network}`, owner)
const membersOf = async (network: string) => (await get(`/v1/networks/${network}`, owner.key)).body.data.members
const reach = (id: string, status: string) =>
  until(async () => (await get(`/v1/sandboxes/${id}`, owner.key)).body.data.status === status)
/** What the host of a sandbox was told: the names in each of its networks. */
const told = (sandbox: { id: string }): Record<string, string[]> =>
  Object.fromEntries(
    host.vms.get(sandbox.id)!.network.network.networks.map(({ id, members }) => [id, members.map((one) => one.name)]),
  )
const names = (...sandboxes: { name: string }[]) => sandboxes.map((one) => one.name)

test('a network is made, listed, read by id and by name, and deleted', async () => {
  const who = await user({ plan: 'pro' })
  const made = (await send('POST', '/v1/networks', who, { name: 'backend' })).body.data

  assert.match(made.id, /^net-/)
  assert.deepEqual({ ...made, id: '', created_at: '' }, { id: '', name: 'backend', created_at: '', member_count: 0 })
  const list = (await get('/v1/networks', who.key)).body.data
  assert.deepEqual(list, { data: [made], pagination: { total: 1, limit: 50, offset: 0, count: 1 } })
  for (const name of [made.id, 'backend']) {
    assert.deepEqual((await get(`/v1/networks/${name}`, who.key)).body.data, { ...made, members: [] })
  }
  assert.deepEqual((await send('DELETE', '/v1/networks/backend', who)).body.data, { ok: true })
  assert.equal((await get('/v1/networks/backend', who.key)).status, 404)
  assert.equal((await send('DELETE', '/v1/networks/backend', who)).status, 404)
})

test('a name is unique for each user, and free again after a delete', async () => {
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

test("someone else's network is not found, anywhere", async () => {
  const theirs = await newNetwork(await user({ plan: 'pro' }))
  const mine = await newSandbox()

  assert.equal((await get(`/v1/networks/${theirs.id}`, owner.key)).status, 404)
  assert.equal((await send('DELETE', `/v1/networks/${theirs.id}`, owner)).status, 404)
  const attached = await attach(mine, theirs.id)
  assert.deepEqual([attached.status, attached.body.data.message], [404, 'network not found'])
  const created = await create(owner, { networks: [{ id: theirs.id }] })
  assert.deepEqual([created.status, created.body.data.networks], [400, `network not found: ${theirs.id}`])
})

test('plans limit networks at once and in a day; without credit there is none', async () => {
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
  await deps.db.updateTable('users').set({ credit_micro: 0 }).where('id', '=', poor.id).execute()
  assert.equal((await send('POST', '/v1/networks', poor, { name: 'one' })).status, 402)
})

test('attaching tells the hosts of all members before it is answered; twice is once', async () => {
  const network = await newNetwork()
  const [a, b] = [await newSandbox(), await newSandbox()]

  assert.deepEqual((await attach(a, network.id)).body.data, { ok: true })
  assert.deepEqual((await attach(b, network.name)).body.data, { ok: true })
  assert.deepEqual((await attach(b, network.id)).body.data, { ok: true })

  assert.deepEqual(told(a), { [network.id]: names(a, b) })
  assert.deepEqual(told(b), { [network.id]: names(a, b) })
  assert.equal(host.vms.get(b.id)!.network.network.networks[0]!.name, network.name)
  assert.deepEqual(
    await membersOf(network.id),
    [a, b].map(({ id, name, ip }) => ({ sandbox_id: id, name, status: 'running', ip })),
  )
  assert.equal((await get(`/v1/networks/${network.id}`, owner.key)).body.data.member_count, 2)
})

test('a sandbox is created into networks: it has its peers before it runs, and they have it', async () => {
  const [one, two] = [await newNetwork(), await newNetwork()]
  const first = await newSandbox({ networks: [{ id: one.name }] })
  let before: unknown
  host.hooks.beforeCreate = (body) => {
    before = body.network.networks.map((network) => network.id).sort()
  }

  const second = await newSandbox({ networks: [{ id: one.id }, { id: two.name }, { id: one.name }] })
  host.hooks = {}

  assert.deepEqual(before, [one.id, two.id].sort())
  assert.deepEqual(told(second), { [one.id]: names(first, second), [two.id]: names(second) })
  assert.deepEqual(told(first), { [one.id]: names(first, second) })
})

test('detaching tells both sides, frees the network at once, and needs a membership', async () => {
  const network = await newNetwork()
  const [a, b] = [await newSandbox(), await newSandbox()]
  for (const one of [a, b]) await attach(one, network.id)

  assert.deepEqual((await detach(a, network.name)).body.data, { ok: true })

  assert.deepEqual(told(a), {})
  assert.deepEqual(told(b), { [network.id]: names(b) })
  assert.equal((await detach(a, network.id)).status, 404)
  const full = await send('DELETE', `/v1/networks/${network.id}`, owner)
  assert.deepEqual([full.status, full.body.data.code], [409, 'has_members'])
  assert.equal(full.body.data.message, 'network still has members')
  await detach(b, network.id)
  assert.equal((await send('DELETE', `/v1/networks/${network.id}`, owner)).status, 200)
})

test('membership survives pause and resume, can be given up while paused, and only a running sandbox joins', async () => {
  const [kept, left] = [await newNetwork(), await newNetwork()]
  const [a, b] = [await newSandbox(), await newSandbox()]
  for (const one of [a, b]) await attach(one, kept.id)
  await attach(a, left.id)
  await send('POST', `/v1/sandboxes/${a.id}/pause`, owner)
  await reach(a.id, 'paused')

  assert.deepEqual((await membersOf(kept.id))[0].status, 'paused')
  const refused = await attach(a, left.id)
  assert.deepEqual([refused.status, refused.body.data.message], [409, 'sandbox is paused, expected running'])
  assert.equal((await detach(a, left.id)).status, 200)
  await send('POST', `/v1/sandboxes/${a.id}/resume`, owner)
  await reach(a.id, 'running')

  assert.deepEqual(told(a), { [kept.id]: names(a, b) })
  assert.deepEqual(told(b), { [kept.id]: names(a, b) })
})

test('a fork is a member of nothing but what it asks for', async () => {
  const network = await newNetwork()
  const source = await newSandbox({ networks: [{ id: network.id }] })
  await send('POST', `/v1/sandboxes/${source.id}/pause`, owner)
  await reach(source.id, 'paused')

  const child = (await send('POST', `/v1/sandboxes/${source.id}/fork`, owner)).body.data
  const asked = { networks: [{ id: network.name }], count: 2 }
  const [one, two] = (await send('POST', `/v1/sandboxes/${source.id}/fork`, owner, asked)).body.data
  for (const { id } of [child, one, two]) await reach(id, 'running')

  assert.deepEqual(told(child), {})
  for (const member of [one, two]) assert.deepEqual(told(member)[network.id]!.sort(), names(source, one, two).sort())
  const unknown = await send('POST', `/v1/sandboxes/${source.id}/fork`, owner, { networks: [{ id: 'nowhere' }] })
  assert.deepEqual([unknown.status, unknown.body.data.networks], [400, 'network not found: nowhere'])
})

test('a destroyed sandbox leaves its networks at once, and its peers forget it', async () => {
  const [network, own] = [await newNetwork(), await newNetwork()]
  const [a, b] = [await newSandbox(), await newSandbox()]
  for (const one of [a, b]) await attach(one, network.id)
  await attach(a, own.id)

  await send('DELETE', `/v1/sandboxes/${a.id}`, owner)
  assert.equal((await send('DELETE', `/v1/networks/${own.id}`, owner)).status, 200)
  await reconcileNetworks.run(deps)

  assert.deepEqual(told(b), { [network.id]: names(b) })
})

test('a create that fails leaves no membership behind', async () => {
  const network = await newNetwork()
  host.hooks.beforeCreate = () => {
    throw new Error('told to fail')
  }
  const failed = await create(owner, { networks: [{ id: network.id }] })
  host.hooks = {}

  assert.equal(failed.status, 502)
  assert.equal((await send('DELETE', `/v1/networks/${network.id}`, owner)).status, 200)
})

test('whatever joins and leaves at once, every host ends with what the tables say', async () => {
  const networks = await Promise.all([newNetwork(), newNetwork(), newNetwork()])
  const sandboxes = await Promise.all(Array.from({ length: 6 }, () => newSandbox()))
  const turns = Array.from({ length: 60 }, (_, n) => async () => {
    const [sandbox, network] = [sandboxes[(n * 5) % 6]!, networks[(n * 7) % 3]!]
    const { status } = n % 3 === 2 ? await detach(sandbox, network.id) : await attach(sandbox, network.id)
    assert.ok(status === 200 || status === 404, String(status))
  })

  await Promise.all(turns.map((turn) => turn()))
  const gone = sandboxes.pop()!
  await send('DELETE', `/v1/sandboxes/${gone.id}`, owner)
  await reconcileNetworks.run(deps)

  const expected: Record<string, string[]> = {}
  for (const { id } of networks) {
    expected[id] = (await membersOf(id)).map((member: { name: string }) => member.name).sort()
  }
  for (const sandbox of sandboxes) {
    const found = Object.fromEntries(Object.entries(told(sandbox)).map(([id, members]) => [id, members.sort()]))
    const mine = Object.fromEntries(Object.entries(expected).filter(([, members]) => members.includes(sandbox.name)))
    assert.deepEqual(found, mine)
  }
})

test('a create with a key makes one network', async () => {
  const once = () =>
    app.inject({
      method: 'POST',
      url: '/v1/networks',
      headers: { ...owner.headers, 'idempotency-key': 'network-1' },
      payload: { name: 'by-key' },
    })

  const [first, second] = [await once(), await once()]

  assert.equal(second.statusCode, 200)
  assert.deepEqual(second.json(), first.json())
})
