/** Stopping ends every process within 10 seconds, at any moment, and loses nothing. */
import assert from 'node:assert/strict'
import { readdir } from 'node:fs/promises'
import http from 'node:http'
import net from 'node:net'
import { type TestContext, test } from 'node:test'
import { scaleLimit } from '@warren/kit/testing/slowness'
import { until } from '@warren/kit/testing/until'
import { withTimeout } from '@warren/kit/timeout'
import {
  createDataDir,
  fetchPath,
  findInstanceFile,
  getPostmasterPid,
  kill,
  launch,
  listProcesses,
  runWarren,
  startInstance,
  stop,
} from './support/instance.ts'

test('SIGTERM stops everything despite open connections, and the next start has the same key and data', async (t) => {
  const dataDir = await createDataDir(t)
  const instance = await startInstance(dataDir)
  assert.equal((await runWarren(dataDir, 'admin', 'user', 'create', 'ada')).code, 0)
  const { hostname, port } = new URL(instance.baseUrl)
  await openIdleConnection(t, hostname, Number(port))
  await sendHalfRequest(t, hostname, Number(port))
  const load = requestContinuously(instance)
  await until(() => load.statuses.length >= 20, 'requests are served')

  assert.equal(await stop(instance), 0)

  assert.deepEqual(listProcesses(dataDir), [])
  await load.ended
  assert.deepEqual(new Set(load.statuses), new Set([200]))
  assert.match(instance.output(), /Stopping \(SIGTERM\) …\n$/)
  const again = await startInstance(dataDir)
  assert.equal(again.key, instance.key)
  assert.match((await runWarren(dataDir, 'admin', 'user', 'list')).stdout, /\bada\b/)
  assert.equal(await stop(again, 'SIGHUP'), 0)
  assert.deepEqual(listProcesses(dataDir), [])
})

test('Ctrl-C stops what npm start started, although npm repeats the signal', async (t) => {
  const dataDir = await createDataDir(t)
  const npm = await startInstance(dataDir, { command: ['npm', 'start'] })

  kill(-npm.pid, 'SIGINT') // The whole group, as a terminal does.
  const { code } = await withTimeout(scaleLimit(10_000), npm.exited, 'stopping')

  assert.equal(code, 0)
  assert.deepEqual(listProcesses(dataDir), [])
  assert.doesNotMatch(npm.output(), /npm err/i)
})

test('when npm is killed, Warren stops', async (t) => {
  const dataDir = await createDataDir(t)
  const npm = await startInstance(dataDir, { command: ['npm', 'start'] })

  kill(npm.pid, 'SIGKILL')

  await until(() => listProcesses(dataDir).length === 0, 'every process has exited', 12_000)
})

const MOMENTS = {
  'while the database is created': async (dataDir: string) =>
    (await readdir(dataDir)).some((name) => name.startsWith('postgres.new-')),
  'while the database starts': async (dataDir: string) => getPostmasterPid(dataDir) > 0,
  'while the control plane starts': async (dataDir: string) => (await findInstanceFile(dataDir))!.children.length > 0,
}

/** No copies of secrets, and no partial database. */
const LEFT_BY_A_STOP = [
  ...['log', 'local.key', 'secrets.key', 'service-ids.json', 'control-plane', 'ingress', 'mirror', 'migrations'],
  ...['postgres', 'postgres-socket', 'postgres.reserve', 'database.json'],
]

for (const [moment, isReached] of Object.entries(MOMENTS)) {
  test(`Ctrl-C ${moment} leaves nothing behind, and the next start works`, async (t) => {
    const dataDir = await createDataDir(t)
    const launched = launch(dataDir)
    await until(() => isReached(dataDir).catch(() => false), 'the moment is reached')

    assert.equal(await stop(launched, 'SIGINT'), 0)

    // The children of initdb exit when they notice that their pipes are closed.
    await until(() => listProcesses(dataDir).length === 0, 'every process has exited', 5_000)
    assert.doesNotMatch(launched.output(), /warren:|failed|error/)
    const unexpected = (await readdir(dataDir)).filter((name) => !LEFT_BY_A_STOP.includes(name))
    assert.deepEqual(unexpected, [])
    const instance = await startInstance(dataDir)
    assert.equal((await fetchPath(instance, '/v1/whoami')).status, 200)
  })
}

/** A keep-alive connection that has been used and stays open. */
async function openIdleConnection(t: TestContext, host: string, port: number): Promise<void> {
  const agent = new http.Agent({ keepAlive: true })
  t.after(() => agent.destroy())
  await new Promise<void>((resolve, reject) => {
    const request = http.get({ host, port, path: '/healthz', agent }, (response) =>
      response.resume().on('end', resolve),
    )
    request.on('error', reject)
  })
}

/** A request whose second half is never sent. */
async function sendHalfRequest(t: TestContext, host: string, port: number): Promise<void> {
  const socket = net.connect({ host, port })
  t.after(() => socket.destroy())
  socket.on('error', () => {})
  await new Promise<void>((resolve) => socket.write('GET /v1/whoami HTTP/1.1\r\nHost: x\r\n', () => resolve()))
}

/** Sends requests one after the other until one fails. */
function requestContinuously(instance: { baseUrl: string; key: string }): { statuses: number[]; ended: Promise<void> } {
  const statuses: number[] = []
  const sendAll = async (): Promise<void> => {
    for (let response: Response; ; statuses.push(response.status)) {
      try {
        response = await fetchPath(instance, '/v1/whoami')
      } catch {
        return
      }
    }
  }
  return { statuses, ended: sendAll() }
}
