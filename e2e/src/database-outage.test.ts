/** The database goes away and comes back under a running control plane. */
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { after, before, test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import {
  createDataDir,
  fetchPath,
  getControlPlanePid,
  getPostmasterPid,
  type Instance,
  kill,
  startInstance,
} from './support/instance.ts'

const dataDir = await createDataDir({ after })
let instance: Instance
let controlPlane: number

before(async () => {
  instance = await startInstance(dataDir)
  controlPlane = await getControlPlanePid(dataDir)
})

test('when PostgreSQL restarts under load, requests are refused with 503 and recover by themselves', async () => {
  const load = startLoad(8)
  await until(() => load.answers.length >= 100, 'requests are being answered')

  kill(getPostmasterPid(dataDir), 'SIGQUIT')
  await until(() => load.answers.some(({ status }) => status === 503), 'the loss is felt')
  await until(() => load.answers.slice(-200).every(({ status }) => status === 200), 'all is well again')
  await load.stop()

  assert.deepEqual(new Set(load.answers.map(({ status }) => status)), new Set([200, 503]))
  for (const refused of load.answers.filter(({ status }) => status === 503)) {
    assert.deepEqual(refused.body, { status: 'error', message: 'database unreachable', code: 503 })
    assert.equal(refused.retryAfter, '1')
  }
})

test('readyz says 503 within 2 seconds while PostgreSQL is halted, healthz stays 200, and it recovers', async () => {
  const halted = [...childrenOf(getPostmasterPid(dataDir)), getPostmasterPid(dataDir)]
  for (const pid of halted) kill(pid, 'SIGSTOP')
  try {
    await expectNotReady()
  } finally {
    for (const pid of halted) kill(pid, 'SIGCONT')
  }

  await until(async () => (await probe('/readyz')).status === 200, 'it is ready again')
})

test('readyz says 503 within 2 seconds while PostgreSQL is gone, healthz stays 200, and it recovers', async () => {
  const killed = getPostmasterPid(dataDir)
  // Halted, the launcher cannot bring it back at once.
  kill(instance.pid, 'SIGSTOP')
  try {
    kill(killed, 'SIGKILL')
    await until(async () => (await probe('/readyz')).status === 503, 'the loss is noticed')
    await expectNotReady()
  } finally {
    kill(instance.pid, 'SIGCONT')
  }

  await until(async () => (await probe('/readyz')).status === 200, 'it is ready again')
  assert.notEqual(getPostmasterPid(dataDir), killed)
  assert.equal((await fetchPath(instance, '/v1/whoami')).status, 200)
})

test('the control plane lived through all of it', async () => {
  assert.equal(await getControlPlanePid(dataDir), controlPlane)
  assert.doesNotMatch(instance.output(), /control plane ended/)
})

async function expectNotReady(): Promise<void> {
  const [ready, alive] = await Promise.all([probe('/readyz'), probe('/healthz')])
  assert.equal(ready.status, 503)
  assert.ok(ready.tookMs < 2_000, `took ${ready.tookMs} ms`)
  assert.equal(ready.retryAfter, '1')
  assert.equal((ready.body as { status: string }).status, 'error')
  assert.equal(alive.status, 200)
}

type Answer = { status: number; body: unknown; retryAfter: string | null; tookMs: number }

async function probe(route: string): Promise<Answer> {
  const startedAt = performance.now()
  const response = await fetchPath(instance, route)
  const body = await response.json()
  return {
    status: response.status,
    body,
    retryAfter: response.headers.get('retry-after'),
    tookMs: performance.now() - startedAt,
  }
}

function startLoad(clients: number): { answers: Answer[]; stop(): Promise<void> } {
  const answers: Answer[] = []
  let stopping = false
  const ask = async (): Promise<void> => {
    while (!stopping) answers.push(await probe('/v1/whoami'))
  }
  const asking = Promise.all(Array.from({ length: clients }, ask))
  return {
    answers,
    async stop() {
      stopping = true
      await asking
    },
  }
}

const childrenOf = (pid: number): number[] =>
  readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8').trim().split(' ').map(Number)
