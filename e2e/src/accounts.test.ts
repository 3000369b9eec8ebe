/** What an operator does with accounts while Warren runs, and a start with another secrets key. */
import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { readFile } from 'node:fs/promises'
import path from 'node:path'
import { test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import {
  createDataDir,
  type Instance,
  listProcesses,
  runWarren,
  spawnWarren,
  startExpectingFailure,
  startInstance,
  stop,
  waitForExit,
} from './support/instance.ts'

// biome-ignore lint/suspicious/noExplicitAny: tests assert on the output itself.
async function admin(dataDir: string, ...args: string[]): Promise<any> {
  const { code, stdout, stderr } = await runWarren(dataDir, 'admin', '--json', ...args)
  assert.equal(code, 0, stderr)
  return JSON.parse(stdout)
}

async function call(instance: Instance, method: string, route: string, body?: object) {
  const response = await fetch(instance.baseUrl + route, {
    method,
    headers: { 'X-Api-Key': instance.key },
    ...(body ? { body: JSON.stringify(body) } : {}),
  })
  // biome-ignore lint/suspicious/noExplicitAny: tests assert on the response itself.
  return ((await response.json()) as any).data
}

/** Starts `warren webhooks listen`, sends an event through it, and returns the line that it printed. */
async function receiveEvent(instance: Instance, name: string): Promise<string> {
  const child = spawnWarren(instance.dataDir, ['webhooks', 'listen', '0'])
  let printed = ''
  child.stdout.on('data', (chunk) => {
    printed += chunk
  })
  const exited = waitForExit(child)
  await until(() => printed.includes('Listening for webhooks'))
  await call(instance, 'POST', '/v1/networks', { name })
  await until(() => printed.includes(name))
  child.kill('SIGINT')
  assert.equal((await exited).code, 0)
  return printed.split('\n').find((line) => line.includes(name))!
}

test('an operator manages plans, limits, credit, the audit log and the secrets key while Warren runs', async (t) => {
  const dataDir = await createDataDir(t)
  const instance = await startInstance(dataDir)
  const keyFile = path.join(dataDir, 'secrets.key')
  const firstKey = await readFile(keyFile, 'utf8')

  await t.test('plans and limits', async () => {
    const plans: { limit: string; pro: number }[] = await admin(dataDir, 'plan')
    assert.equal(plans.find(({ limit }) => limit === 'sandboxes')!.pro, 20)
    await admin(dataDir, 'user', 'create', 'ada', '--plan', 'pro')
    const limits: object[] = await admin(dataDir, 'user', 'set-limit', 'ada', 'sandboxes', '3')
    assert.deepEqual(limits[0], { limit: 'sandboxes', value: 3, from: 'set for this user' })
  })

  await t.test('credit', async () => {
    const add = () => admin(dataDir, 'user', 'add-credit', 'ada', '25.5', '--reference', 'inv-1')
    assert.equal((await add()).credits, 525.5)
    assert.equal((await add()).credits, 525.5)
    const ledger: { kind: string; balance: number }[] = await admin(dataDir, 'credit', 'ledger', 'ada')
    assert.deepEqual(
      ledger.map(({ kind, balance }) => [kind, balance]),
      [
        ['top_up', 525.5],
        ['grant', 500],
      ],
    )
    assert.deepEqual(await admin(dataDir, 'credit', 'verify'), [])
  })

  await t.test('a rotation of the key, after which secrets are still read', async () => {
    const endpoint = await call(instance, 'POST', '/v1/webhook-endpoints', { url: 'http://127.0.0.1:9/' })
    const { secrets, removed_keys } = await admin(dataDir, 'secrets', 'rotate')
    assert.deepEqual([secrets, removed_keys], [1, 1])
    assert.notEqual(await readFile(keyFile, 'utf8'), firstKey)
    await call(instance, 'POST', `/v1/webhook-endpoints/${endpoint.id}/test`)
    const lastError = async () =>
      (await call(instance, 'GET', `/v1/webhook-endpoints/${endpoint.id}`)).deliveries[0].lastError
    await until(async () => (await lastError()) === 'connection refused')
    assert.match(await receiveEvent(instance, 'after-rotation'), /network\.create/)
  })

  await t.test('the audit log', async () => {
    const entries: { action: string; target: string }[] = await admin(dataDir, 'audit', '--user', 'ada')
    assert.deepEqual(
      entries.map(({ action }) => action),
      ['admin.user.add-credit', 'admin.user.add-credit', 'admin.user.set-limit', 'admin.user.create'],
    )
    const [rotation] = await admin(dataDir, 'audit', '--action', 'admin.secrets.rotate')
    assert.equal(rotation.outcome, 'success')
  })

  await t.test('a start with another key says so and changes nothing', async () => {
    assert.equal(await stop(instance), 0)
    const rightKey = await readFile(keyFile, 'utf8')

    const env = { WARREN_SECRETS_KEY: randomBytes(32).toString('hex') }
    const { code, output } = await startExpectingFailure(dataDir, { env })

    assert.equal(code, 1)
    assert.match(output, /wrong secrets key: the secrets in this database are encrypted with key [0-9a-f]{16}, but/)
    assert.match(output, /WARREN_SECRETS_KEY has [0-9a-f]{16}\. Nothing was changed\./)
    assert.doesNotMatch(output, new RegExp(`${env.WARREN_SECRETS_KEY}|${rightKey.trim()}`))
    assert.equal(await readFile(keyFile, 'utf8'), rightKey)
    assert.deepEqual(listProcesses(dataDir), [])

    const again = await startInstance(dataDir)
    assert.match(await receiveEvent(again, 'right-key'), /network\.create/)
    assert.equal(await stop(again), 0)
  })
})
