import assert from 'node:assert/strict'
import { once } from 'node:events'
import { mkdtemp, rm } from 'node:fs/promises'
import http2, { type ServerHttp2Stream } from 'node:http2'
import net from 'node:net'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { after, test } from 'node:test'
import { HOST_NETWORK_DEFAULT, HOST_ROUTES, type HostRouteName } from '@warren/protocol'
import { createHostRouter, type HostHandlers, HostRequestError, respondFailure } from './host-router.ts'

const ID = 'sb-01ARZ3NDEKTSV4RRFFQ69G5FAV'
const BUILD_ID = 'tpl_01ARZ3NDEKTSV4RRFFQ69G5FAV'
const BODY = { fence: 7, limit_ms: 1000 }
const REQUESTS: Record<HostRouteName, [path: string, body?: object]> = {
  getHost: ['/v1/host'],
  getMetrics: ['/v1/metrics'],
  createVm: [
    '/v1/vms',
    {
      id: ID,
      fence: 1,
      vcpu: 1,
      mem_mib: 256,
      cpu_quota_pct: 100,
      disk_mib: 1024,
      image: 'debian:13',
      ip: '100.64.0.2',
      hostname: 'brave-otter',
      envs: {},
      ssh_pubkeys: [],
      network: HOST_NETWORK_DEFAULT,
      limit_ms: 1000,
    },
  ],
  pauseVm: [`/v1/vms/${ID}/pause`, BODY],
  resumeVm: [
    `/v1/vms/${ID}/resume`,
    {
      ...BODY,
      cpu_quota_pct: 100,
      ip: '100.64.0.2',
      hostname: 'brave-otter',
      envs: {},
      ssh_pubkeys: [],
      network: HOST_NETWORK_DEFAULT,
    },
  ],
  forkVm: [`/v1/vms/${ID}/forks`, { live: true, children: [{ id: ID, fence: 1 }] }],
  resizeVm: [`/v1/vms/${ID}/resize`, { ...BODY, disk_mib: 20_480 }],
  deleteVm: [`/v1/vms/${ID}?fence=7`],
  setVmNetwork: [`/v1/vms/${ID}/network`, { fence: 7, network: HOST_NETWORK_DEFAULT }],
  getVmNetwork: [`/v1/vms/${ID}/network`],
  setVmMounts: [`/v1/vms/${ID}/mounts`, { fence: 7, revision: 1, mounts: [] }],
  getVmMounts: [`/v1/vms/${ID}/mounts`],
  listMounts: ['/v1/mounts'],
  getVmMetrics: [`/v1/vms/${ID}/metrics`],
  getVmSeries: [`/v1/vms/${ID}/metrics/series`],
  listNetworks: ['/v1/networks'],
  collectSnapshots: ['/v1/snapshots/collect'],
  listBases: ['/v1/bases'],
  prepareBase: ['/v1/bases', { image: 'debian:13', vcpu: 1, mem_mib: 256, disk_mib: 1024 }],
  startBuild: [
    `/v1/builds/${BUILD_ID}`,
    {
      attempt: 1,
      image: 'debian:13',
      steps: [{ kind: 'run', line: 2, text: 'RUN true', env: {}, user: '', workdir: '/', argv: ['true'] }],
      env: {},
      notes: [],
      cache_owner: 'usr_1',
      no_cache: false,
      vcpu: 2,
      mem_mib: 2048,
      cpu_quota_pct: 200,
      disk_mib: 10_240,
      ip: '100.64.0.2',
      network: HOST_NETWORK_DEFAULT,
      limits: { steps_ms: 1000, rootfs_bytes: 1000, log_bytes: 1000 },
      bases: [],
    },
  ],
  getBuild: [`/v1/builds/${BUILD_ID}`],
  readBuildLog: [`/v1/builds/${BUILD_ID}/log?after=0`],
  cancelBuild: [`/v1/builds/${BUILD_ID}/cancel`, { attempt: 1, reason: 'cancelled' }],
  deleteBuild: [`/v1/builds/${BUILD_ID}`],
  connectToPort: [`/v1/vms/${ID}/ports/8080`],
  callGuest: [`/v1/vms/${ID}/guest/processes/proc_1/wait?scope=tree`],
}

type Seen = {
  name: string
  method: string
  params: Record<string, string>
  search: string
  query: unknown
  body: unknown
}
let seen: Seen | undefined

const client = await startServer()

for (const name of Object.keys(HOST_ROUTES) as HostRouteName[]) {
  test(`${name} reaches its handler with its parameters and body`, async () => {
    const [to, body] = REQUESTS[name]
    const method = HOST_ROUTES[name].method === '*' ? 'GET' : HOST_ROUTES[name].method

    const response = await send(method, to, body)

    assert.deepEqual(response, { status: 200, body: { served: name } })
    assert.equal(seen?.name, name)
    assert.deepEqual(seen?.body, body)
    if (to.includes(ID)) assert.equal(seen?.params.id, ID)
  })
}

test('the body of a build may be larger than others', async () => {
  const [to, body] = REQUESTS.startBuild
  const { status } = await send('PUT', to, { ...body, notes: ['x'.repeat(2 * 1024 * 1024)] })

  assert.equal(status, 200)
})

test('query parameters are numbers where the schema says so', async () => {
  await send('DELETE', `/v1/vms/${ID}?fence=12`)

  assert.deepEqual(seen?.query, { fence: 12 })
})

test('a request to the guest keeps its method, path and query', async () => {
  await send('PUT', `/v1/vms/${ID}/guest/files?path=%2Ftmp%2Fa`)

  assert.deepEqual([seen?.method, seen?.params, seen?.search], ['PUT', { id: ID, '*': 'files' }, '?path=%2Ftmp%2Fa'])
})

test('an unknown route is not found', async () => {
  for (const [method, to] of [
    ['GET', '/'],
    ['GET', '/v1/vms'],
    ['POST', `/v1/vms/${ID}`],
    ['POST', `/v1/vms/${ID}/explode`],
    ['GET', `/v1/vms/${ID}/guest`],
  ] as const) {
    const { status, body } = await send(method, to)

    assert.deepEqual([status, body.code], [404, 'not_found'], `${method} ${to}`)
  }
})

test('a body or a query that does not fit is invalid, and the message names the field', async () => {
  const pause = await send('POST', `/v1/vms/${ID}/pause`, { fence: 0, limit_ms: 1000 })
  const remove = await send('DELETE', `/v1/vms/${ID}`)
  const noJson = await send('POST', `/v1/vms/${ID}/pause`, '{')

  assert.deepEqual([pause.status, pause.body.code], [400, 'invalid'])
  assert.match(pause.body.message, /fence/)
  assert.deepEqual([remove.status, remove.body.code], [400, 'invalid'])
  assert.deepEqual([noJson.status, noJson.body.code], [400, 'invalid'])
})

async function startServer() {
  const folder = await mkdtemp(path.join(tmpdir(), 'warren-router-'))
  const route = createHostRouter(recordingHandlers())
  const server = http2.createServer()
  server.on('stream', (stream: ServerHttp2Stream, headers) => {
    route(stream, headers).catch((error: HostRequestError) => {
      assert.ok(error instanceof HostRequestError, error)
      respondFailure(stream, error.code, error.message)
    })
  })
  const socket = path.join(folder, 'host.sock')
  server.listen(socket)
  await once(server, 'listening')
  const client = http2.connect('http://host', { createConnection: () => net.connect(socket) })
  after(async () => {
    client.destroy()
    server.close()
    await rm(folder, { recursive: true })
  })
  return client
}

/** Each handler records its request and responds with the name of its route. */
function recordingHandlers(): HostHandlers {
  const names = Object.keys(HOST_ROUTES) as HostRouteName[]
  const handlers = names.map((name) => [
    name,
    ({ stream, ...request }: Omit<Seen, 'name'> & { stream: ServerHttp2Stream }) => {
      seen = { name, ...request }
      if ('response' in HOST_ROUTES[name]) return { served: name }
      stream.respond({ ':status': 200 })
      stream.end(JSON.stringify({ served: name }))
      return undefined
    },
  ])
  return Object.fromEntries(handlers)
}

async function send(method: string, to: string, body?: object | string) {
  const stream = client.request({ ':method': method, ':path': to }, { endStream: body === undefined })
  if (body !== undefined) stream.end(typeof body === 'string' ? body : JSON.stringify(body))
  const [headers] = await once(stream, 'response')
  let text = ''
  for await (const chunk of stream) text += chunk
  return { status: headers[':status'] as number, body: JSON.parse(text) }
}
