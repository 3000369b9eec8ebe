import assert from 'node:assert/strict'
import { fork, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { after, test } from 'node:test'
import { startTestPostgres } from '@warren/kit/postgres/testing'
import { PAY_TO } from './testing/app.ts'

const MAIN = path.join(import.meta.dirname, 'main.ts')
const { NODE_TEST_CONTEXT: _, ...env } = process.env

test('without its settings the gateway says what is missing and exits', () => {
  const { status, stderr } = spawnSync(process.execPath, [MAIN], { env, encoding: 'utf8' })

  assert.equal(status, 78)
  assert.match(stderr, /WARREN_GATEWAY_RPC_ARBITRUM is not set/)
})

test('it starts on an empty database, serves its routes, and stops cleanly', async () => {
  const postgres = await startTestPostgres()
  const dataDir = await mkdtemp(path.join(tmpdir(), 'warren-gateway-'))
  after(async () => {
    await postgres.stop()
    await rm(dataDir, { recursive: true, force: true })
  })
  const child = fork(MAIN, {
    env: {
      ...env,
      DATABASE_URL: postgres.url,
      WARREN_GATEWAY_PORT: '0',
      WARREN_GATEWAY_APPS_PORT: '0',
      WARREN_GATEWAY_METRICS_PORT: '0',
      WARREN_GATEWAY_DATA_DIR: dataDir,
      WARREN_GATEWAY_PAY_TO: PAY_TO,
      WARREN_GATEWAY_RPC_ARBITRUM: 'http://127.0.0.1:1',
      WARREN_GATEWAY_RPC_BASE: 'http://127.0.0.1:1',
      WARREN_GATEWAY_CONTROL_PLANE_URL: 'http://127.0.0.1:1',
      WARREN_GATEWAY_API_KEY: 'skp_test',
      WARREN_LOG_LEVEL: 'error',
    },
  })
  after(() => child.kill('SIGKILL'))
  const [{ url }] = (await once(child, 'message')) as [{ url: string }]

  assert.deepEqual(await (await fetch(`${url}/health`)).json(), { status: 'ok' })
  assert.equal((await fetch(`${url}/agent/recipients`)).status, 200)
  assert.equal((await fetch(`${url}/agent/deploy`, { method: 'POST' })).status, 401)
  child.kill('SIGTERM')
  assert.deepEqual(await once(child, 'exit'), [0, null])
})
