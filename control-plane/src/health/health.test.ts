import assert from 'node:assert/strict'
import { readFile } from 'node:fs/promises'
import { test } from 'node:test'
import { startTestPostgres } from '@warren/kit/postgres/testing'
import { scaleLimit } from '@warren/kit/testing/slowness'
import { until } from '@warren/kit/testing/until'
import { connectDatabase } from '../db/connect.ts'
import { createTestApp } from '../testing/app.ts'

const { get } = await createTestApp()

test('healthz and readyz use the envelope and need no valid key', async () => {
  for (const key of [undefined, 'skp_wrong']) {
    assert.deepEqual((await get('/healthz', key)).body, { status: 'success', data: { up: true } })
    assert.deepEqual((await get('/readyz', key)).body, { status: 'success', data: { ready: true } })
  }
})

test('without a database readyz is 503 with the reason, requests are 503, and healthz is 200', async () => {
  const unreachable = connectDatabase('postgresql://user@/nothing?host=/nonexistent', { warn() {} })
  const { app } = await createTestApp({ database: unreachable, watchCredentials: false })

  const ready = await app.inject('/readyz')
  const list = await app.inject({ url: '/v1/sandboxes', headers: { 'x-api-key': 'skp_any' } })

  assert.equal(ready.statusCode, 503)
  assert.deepEqual(ready.json(), {
    status: 'error',
    message: 'database unreachable',
    code: 503,
    data: { ready: false, reason: 'the database cannot be reached' },
  })
  assert.deepEqual(
    [list.statusCode, list.json()],
    [503, { status: 'error', message: 'database unreachable', code: 503 }],
  )
  assert.equal(list.headers['retry-after'], '1')
  assert.equal((await app.inject('/healthz')).statusCode, 200)
  await unreachable.close()
})

test('if the database hangs, readyz is 503 within 2 seconds, and 200 when the database responds again', async () => {
  const server = await startTestPostgres()
  const database = connectDatabase(server.url, { warn() {} })
  const { app } = await createTestApp({ database, watchCredentials: false })
  try {
    assert.equal((await app.inject('/readyz')).statusCode, 200)
    const pids = await stopProcesses(server.pid)
    const startedAt = Date.now()
    const hanging = await app.inject('/readyz')
    const tookMs = Date.now() - startedAt
    for (const pid of pids) process.kill(pid, 'SIGCONT')

    assert.deepEqual([hanging.statusCode, hanging.json().data.reason], [503, 'the database does not respond'])
    assert.ok(tookMs < scaleLimit(2_000), `${tookMs} ms`)
    await until(async () => (await app.inject('/readyz')).statusCode === 200)
  } finally {
    await database.close()
    await server.stop()
  }
})

/** Stops the postmaster and its children, because the children serve the connections that are already open. */
async function stopProcesses(postmaster: number): Promise<number[]> {
  const children = (await readFile(`/proc/${postmaster}/task/${postmaster}/children`, 'utf8')).trim().split(' ')
  const pids = [postmaster, ...children.map(Number)].filter((pid) => pid > 1)
  for (const pid of pids) process.kill(pid, 'SIGSTOP')
  return pids
}
