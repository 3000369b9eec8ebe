import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { test } from 'node:test'
import { promisify } from 'node:util'
import { passTime } from '@warren/kit/testing/pass-time'
import { until } from '@warren/kit/testing/until'
import { insertSandbox } from '../testing/sandboxes.ts'
import { createHostedApp } from '../testing/with-host.ts'
import { lockUser } from './caps.ts'

const { deps, host, user, get, create, send } = await createHostedApp({ host: { cidr: '100.64.0.0/23' } })
const CLI = new URL('../admin/main.ts', import.meta.url).pathname

// biome-ignore lint/suspicious/noExplicitAny: tests assert on the output itself.
async function admin(...args: string[]): Promise<any> {
  const env = { ...process.env, NODE_TEST_CONTEXT: undefined, DATABASE_URL: deps.database.url }
  const { stdout } = await promisify(execFile)(process.execPath, [CLI, '--json', ...args], { env })
  return JSON.parse(stdout)
}

const countStatuses = (responses: { status: number }[]) =>
  Object.fromEntries(
    Map.groupBy(responses, ({ status }) => status)
      .entries()
      .map(([status, all]) => [status, all.length]),
  )

test('of 50 concurrent creates of sandboxes, exactly as many as the cap succeed', async () => {
  const ada = await user({ plan: 'pro' })
  host.hooks = { beforeCreate: () => passTime(20, 'so that the creates overlap') }

  const responses = await Promise.all(Array.from({ length: 50 }, () => create(ada)))
  host.hooks = {}

  assert.deepEqual(countStatuses(responses), { 200: 20, 429: 30 })
  const plan = (await get('/v1/plan', ada.key)).body.data
  assert.deepEqual(plan.sandboxes, { concurrent: { limit: 20, used: 20 }, per_day: { limit: 200, used: 20 } })
})

test('of 50 concurrent creates of networks, exactly as many as the cap succeed', async () => {
  const ada = await user({ plan: 'beginner' })

  const responses = await Promise.all(
    Array.from({ length: 50 }, (_, n) => send('POST', '/v1/networks', ada, { name: `net-${n}` })),
  )

  assert.deepEqual(countStatuses(responses), { 200: 5, 429: 45 })
  const plan = (await get('/v1/plan', ada.key)).body.data
  assert.deepEqual(plan.networks, { concurrent: { limit: 5, used: 5 }, per_day: { limit: 50, used: 5 } })
})

test('of 50 concurrent creates of webhook endpoints, exactly as many as the cap succeed', async () => {
  const ada = await user({ plan: 'pro' })

  const responses = await Promise.all(
    Array.from({ length: 50 }, () => send('POST', '/v1/webhook-endpoints', ada, { url: 'https://93.184.215.14/' })),
  )

  assert.deepEqual(countStatuses(responses), { 200: 6, 429: 44 })
  const plan = (await get('/v1/plan', ada.key)).body.data
  assert.deepEqual(plan.webhook_endpoints, { concurrent: { limit: 6, used: 6 } })
})

test('creates of one user that wait for each other leave the database to other users', async () => {
  const [ada, bob] = [await user({ plan: 'pro' }), await user({ plan: 'pro' })]
  const createNetwork = (who: typeof ada, n: number) => send('POST', '/v1/networks', who, { name: `busy-${n}` })

  const { waiting, other } = await deps.db.transaction().execute(async (tx) => {
    await lockUser(tx, ada.id)
    const waiting = Promise.all(Array.from({ length: 50 }, (_, n) => createNetwork(ada, n)))
    return { waiting, other: await createNetwork(bob, 0) }
  })

  assert.equal(other.status, 200, JSON.stringify(other.body))
  assert.deepEqual(countStatuses(await waiting), { 200: 20, 429: 30 })
})

test('of 50 concurrent creates near the daily cap, exactly the rest of the day succeeds', async () => {
  const ada = await user({ plan: 'pro' })
  await admin('user', 'set-limit', ada.id, 'sandboxes', 'unlimited')
  await admin('user', 'set-limit', ada.id, 'sandboxes_per_day', '7')
  for (let n = 0; n < 4; n++) await insertSandbox(deps.db, ada.id, 'destroyed', { running_at: new Date() })

  const responses = await Promise.all(Array.from({ length: 50 }, () => create(ada)))

  assert.deepEqual(countStatuses(responses), { 200: 3, 429: 47 })
  const refused = responses.find(({ status }) => status === 429)!
  assert.equal(refused.body.data.code, 'daily_cap_reached')
  assert.equal(refused.body.data.message, 'daily sandbox cap reached: your account allows 7 in 24 hours')
  assert.equal(refused.headers['retry-after'], undefined)
})

test('a failed create counts in no cap', async () => {
  const ada = await user({ plan: 'free' })
  host.hooks = {
    beforeCreate: () => {
      throw new Error('no VM today')
    },
  }
  assert.equal((await create(ada)).status, 502)
  host.hooks = {}

  const plan = (await get('/v1/plan', ada.key)).body.data
  assert.deepEqual([plan.sandboxes.concurrent.used, plan.sandboxes.per_day.used], [0, 0])
  assert.equal((await create(ada)).status, 200)
})

test('the plan shows all limits and what is used; without a limit, `limit` is absent', async () => {
  const free = await user({ plan: 'free' })
  const made = await create(free)
  await send('DELETE', `/v1/sandboxes/${made.body.data.id}`, free)
  await until(async () => (await get('/v1/plan', free.key)).body.data.sandboxes.concurrent.used === 0)

  assert.deepEqual((await get('/v1/plan', free.key)).body.data, {
    plan: 'free',
    sandboxes: { concurrent: { limit: 1, used: 0 }, per_day: { limit: 10, used: 1 } },
    networks: { concurrent: { limit: 1, used: 0 }, per_day: { limit: 10, used: 0 } },
    disks: { concurrent: { limit: 0, used: 0 }, per_day: { limit: 0, used: 0 } },
    templates: { concurrent: { limit: 0, used: 0 }, per_day: { limit: 0, used: 0 } },
    template_builds: { concurrent: { limit: 2, used: 0 } },
    webhook_endpoints: { concurrent: { limit: 2, used: 0 } },
    max_disk_mib: 10_240,
    max_vcpu: 1,
    max_mem_mib: 1024,
    shapes: ['s-0.25vcpu-512mb', 's-0.5vcpu-1gb', 's-1vcpu-256mb', 's-1vcpu-1gb'],
    overrides: [],
  })
  const local = (await get('/v1/plan', (await user({ plan: 'local' })).key)).body.data
  assert.deepEqual(local.sandboxes, { concurrent: { used: 0 }, per_day: { used: 0 } })
})

test('an operator changes limits of one user without a restart, and takes them back', async () => {
  const [ada, bob] = [await user({ plan: 'free' }), await user({ plan: 'free' })]
  const big = { shape: 's-2vcpu-2gb', disk_mib: 20_480 }
  const refused = await create(ada, big)
  assert.deepEqual([refused.status, refused.body.data.code], [400, 'plan_limit'])

  await admin('user', 'set-limit', ada.id, 'max_vcpu', '2')
  await admin('user', 'set-limit', ada.id, 'max_mem_mib', '2048')
  const shown = await admin('user', 'set-limit', ada.id, 'max_disk_mib', 'unlimited')

  assert.deepEqual(shown.at(-3), { limit: 'max_disk_mib', value: 'unlimited', from: 'set for this user' })
  assert.deepEqual(shown[0], { limit: 'sandboxes', value: 1, from: 'plan free' })
  // The credentials are cached; the change reaches this process by notification.
  await until(async () => (await create(ada, big)).status !== 400)
  assert.equal((await create(bob, big)).status, 400)
  assert.deepEqual((await get('/v1/plan', ada.key)).body.data.overrides, ['max_disk_mib', 'max_mem_mib', 'max_vcpu'])

  await admin('user', 'set-limit', ada.id, 'max_vcpu', 'plan')
  await until(async () => (await create(ada, big)).status === 400)
})

test('set-limit refuses unknown limits and values, and changes nothing', async () => {
  const ada = await user({ plan: 'free' })

  await assert.rejects(admin('user', 'set-limit', ada.id, 'sandboxen', '5'), /Allowed choices are sandboxes, /)
  await assert.rejects(admin('user', 'set-limit', ada.id, 'sandboxes', '-1'))
  await assert.rejects(admin('user', 'set-limit', ada.id, 'sandboxes', 'lots'), /a whole number/)
  await assert.rejects(admin('user', 'set-limit', 'unknown-user', 'sandboxes', '5'), /user .* not found/)

  assert.deepEqual((await get('/v1/plan', ada.key)).body.data.overrides, [])
})

test('`warren admin plan` lists every limit of every plan', async () => {
  const limits = await admin('plan')

  assert.deepEqual(limits[0], {
    limit: 'sandboxes',
    local: 'unlimited',
    internal: 'unlimited',
    free: 1,
    beginner: 5,
    pro: 20,
    enterprise: 30,
  })
  assert.equal(limits.length, 13)
})

test('a limit that was lowered below what exists stops creates and resumes, and deletes nothing', async () => {
  const ada = await user({ plan: 'beginner' })
  const ids = [await create(ada), await create(ada)].map(({ body }) => body.data.id)
  await send('POST', `/v1/sandboxes/${ids[0]}/pause`, ada)
  await until(async () => (await get(`/v1/sandboxes/${ids[0]}`, ada.key)).body.data.status === 'paused')

  await admin('user', 'set-limit', ada.id, 'sandboxes', '1')

  assert.equal((await create(ada)).body.data.code, 'cap_reached')
  assert.equal((await send('POST', `/v1/sandboxes/${ids[0]}/resume`, ada)).body.data.code, 'cap_reached')
  const { concurrent } = (await get('/v1/plan', ada.key)).body.data.sandboxes
  assert.deepEqual(concurrent, { limit: 1, used: 2 })
})
