/** The database becomes unavailable and recovers while the control plane runs. */
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { after, before, test } from 'node:test'
import { scaleLimit } from '@warren/kit/testing/slowness'
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

test('while PostgreSQL restarts under load, requests get 503, then succeed again', async () => {
  const load = startLoad(8)
  await until(() => load.responses.length >= 100, 'requests are served')

  kill(getPostmasterPid(dataDir), 'SIGQUIT')
  await until(() => load.responses.some(({ status }) => status === 503), 'requests fail')
  await until(() => load.responses.slice(-200).every(({ status }) => status === 200), 'all requests succeed again')
  await load.stop()

  assert.deepEqual(new Set(load.responses.map(({ status }) => status)), new Set([200, 503]))
  for (const failed of load.responses.filter(({ status }) => status === 503)) {
    assert.deepEqual(failed.body, { status: 'error', message: 'database unreachable', code: 503 })
    assert.equal(failed.retryAfter, '1')
  }
})

test('while PostgreSQL is stopped, readyz responds 503 within 2 seconds and healthz 200; then it recovers', async () => {
  const stopped = [...listChildren(getPostmasterPid(dataDir)), getPostmasterPid(dataDir)]
  for (const pid of stopped) kill(pid, 'SIGSTOP')
  try {
    await expectNotReady()
  } finally {
    for (const pid of stopped) kill(pid, 'SIGCONT')
  }

  await until(async () => (await probe('/readyz')).status === 200, 'it is ready again')
})

test('while PostgreSQL is dead, readyz responds 503 within 2 seconds and healthz 200; then it recovers', async () => {
  const killed = getPostmasterPid(dataDir)
  // While it is stopped, the launcher cannot restart PostgreSQL.
  kill(instance.pid, 'SIGSTOP')
  try {
    kill(killed, 'SIGKILL')
    await until(async () => (await probe('/readyz')).status === 503, 'the outage is noticed')
    await expectNotReady()
  } finally {
    kill(instance.pid, 'SIGCONT')
  }

  await until(async () => (await probe('/readyz')).status === 200, 'it is ready again')
  assert.notEqual(getPostmasterPid(dataDir), killed)
  assert.equal((await fetchPath(instance, '/v1/whoami')).status, 200)
})

test('the control plane was not restarted', async () => {
  assert.equal(await getControlPlanePid(dataDir), controlPlane)
  assert.doesNotMatch(instance.output(), /control plane ended/)
})

async function expectNotReady(): Promise<void> {
  const [ready, alive] = await Promise.all([probe('/readyz'), probe('/healthz')])
  assert.equal(ready.status, 503)
  assert.ok(ready.tookMs < scaleLimit(2_000), `took ${ready.tookMs} ms`)
  assert.equal(ready.retryAfter, '1')
  assert.equal((ready.body as { status: string }).status, 'error')
  assert.equal(alive.status, 200)
}

type ProbeResponse = { status: number; body: unknown; retryAfter: string | null; tookMs: number }

async function probe(route: string): Promise<ProbeResponse> {
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

function startLoad(clients: number): { responses: ProbeResponse[]; stop(): Promise<void> } {
  const responses: ProbeResponse[] = []
  let stopping = false
  const sendAll = async (): Promise<void> => {
    while (!stopping) responses.push(await probe('/v1/whoami'))
  }
  const sending = Promise.all(Array.from({ length: clients }, sendAll))
  return {
    responses,
    async stop() {
      stopping = true
      await sending
    },
  }
}

const listChildren = (pid: number): number[] =>
  readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8').trim().split(' ').map(Number)
