/** `warren webhooks listen` against the API: the program that users start, with its endpoint and its end. */
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { after, test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { writeHeartbeat } from '../jobs/processes.ts'
import { createTestApp, listenOn, type TestUser } from '../testing/app.ts'
import { startDeliverer } from './deliverer.ts'

const CLI = new URL('../../../cli/src/main.ts', import.meta.url).pathname
const { app, deps, user, get } = await createTestApp({ config: { localUser: true } })
const { url } = await listenOn(app)
await writeHeartbeat(deps, [])
const deliverer = startDeliverer(deps)
after(() => deliverer.stop())

function listen(who: TestUser, ...args: string[]) {
  const env = { ...process.env, NODE_TEST_CONTEXT: undefined, WARREN_BASE_URL: url, WARREN_API_KEY: who.key }
  const child = spawn(process.execPath, [CLI, 'webhooks', 'listen', '0', ...args], { env })
  after(() => child.kill('SIGKILL'))
  const printed = { stdout: '', stderr: '' }
  child.stdout.on('data', (chunk) => (printed.stdout += chunk))
  child.stderr.on('data', (chunk) => (printed.stderr += chunk))
  return { child, printed, exited: once(child, 'exit') }
}

test('it creates an endpoint, prints the events of the account, and deletes the endpoint at its end', async () => {
  const ada = await user({ plan: 'local' })
  const { child, printed, exited } = listen(ada, '--events', 'network.create,network.delete')
  await until(() => printed.stdout.includes('Listening for webhooks'))
  const [endpoint] = (await get('/v1/webhook-endpoints', ada.key)).body.data
  assert.deepEqual(endpoint.events, ['network.create', 'network.delete'])

  const payload = { name: 'backend' }
  const response = await app.inject({ method: 'POST', url: '/v1/networks', headers: ada.headers, payload })
  const { id } = response.json().data
  await until(() => printed.stdout.includes('network.create'))

  const line = printed.stdout.split('\n').find((one) => one.includes('network.create'))!
  assert.match(line, /^\d{4}-\d\d-\d\dT[\d:.]+Z {2}network\.create {2,}\{/)
  assert.deepEqual(JSON.parse(line.slice(line.indexOf('{'))), { id, name: 'backend', network_id: id })
  child.kill('SIGINT')
  assert.deepEqual(await exited, [0, null])
  assert.deepEqual((await get('/v1/webhook-endpoints', ada.key)).body.data, [])
  assert.equal(printed.stderr, '')
})

test('it ends with the error of the API when the endpoint is refused', async () => {
  const { printed, exited } = listen(await user({ plan: 'free' }))

  assert.deepEqual(await exited, [1, null])
  assert.match(printed.stderr, /address to which webhooks are not sent/)
})
