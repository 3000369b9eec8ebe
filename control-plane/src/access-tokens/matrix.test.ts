/**
 * Access rules: every route of the app × every kind of caller. The routes are read from the app, so a new one without a
 * line here fails; the rules are written out here and not read from the code.
 */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createHostedApp } from '../testing/with-host.ts'

/**
 *   public   anyone
 *   account  any user, each for their own data; no access token
 *   operator operators only
 *   owner    the owner of the sandbox; its access token is forbidden, for all others it is not found
 *   token    the owner and the sandbox's access token; for all others it is not found
 *   tools    anyone with a credential; each sees the tools it may use
 *   byIp     like account, but the sandbox of another user is not found
 */
const MATRIX: Record<string, keyof typeof EXPECTED> = {
  'GET /healthz': 'public',
  'GET /readyz': 'public',
  'GET /v1/shapes': 'public',
  'GET /v1/rootfs': 'public',
  'GET /openapi.json': 'public',
  'GET /docs': 'public',
  'GET /docs/scalar.js': 'public',
  'GET /docs/start.js': 'public',
  // The permissions of its tools are tested in mcp.test.ts.
  'POST /mcp': 'tools',
  'GET /mcp': 'tools',
  'DELETE /mcp': 'tools',
  'GET /v1/whoami': 'account',
  'GET /v1/plan': 'account',
  'GET /v1/audit': 'account',
  'GET /v1/credit': 'account',
  'GET /v1/credit/ledger': 'account',
  'GET /v1/metrics': 'account',
  'GET /v1/metrics/timeseries': 'account',
  'GET /v1/webhook-endpoints/actions': 'account',
  'GET /v1/webhook-endpoints': 'account',
  'POST /v1/webhook-endpoints': 'account',
  'GET /v1/webhook-endpoints/:id': 'account',
  'DELETE /v1/webhook-endpoints/:id': 'account',
  'POST /v1/webhook-endpoints/:id/suspend': 'account',
  'POST /v1/webhook-endpoints/:id/resume': 'account',
  'POST /v1/webhook-endpoints/:id/test': 'account',
  'POST /v1/webhook-endpoints/:id/deliveries/:delivery/replay': 'account',
  'GET /v1/hosts': 'operator',
  'POST /v1/sandboxes': 'account',
  'GET /v1/sandboxes': 'account',
  'GET /v1/sandboxes/by-ip/:ip': 'byIp',
  'GET /v1/sandboxes/:id': 'token',
  'PATCH /v1/sandboxes/:id': 'owner',
  'DELETE /v1/sandboxes/:id': 'token',
  'POST /v1/sandboxes/:id/pause': 'token',
  'POST /v1/sandboxes/:id/resume': 'token',
  'POST /v1/sandboxes/:id/fork': 'owner',
  'POST /v1/sandboxes/:id/resize': 'owner',
  'GET /v1/sandboxes/:id/events': 'token',
  'GET /v1/networks': 'account',
  'POST /v1/networks': 'account',
  'GET /v1/networks/:id': 'account',
  'DELETE /v1/networks/:id': 'account',
  'GET /v1/disks': 'account',
  'POST /v1/disks': 'account',
  'GET /v1/disks/:idOrName': 'account',
  'PATCH /v1/disks/:idOrName': 'account',
  'DELETE /v1/disks/:idOrName': 'account',
  'GET /v1/templates': 'account',
  'POST /v1/templates': 'account',
  'GET /v1/templates/:id': 'account',
  'GET /v1/templates/:id/logs': 'account',
  'DELETE /v1/templates/:id': 'account',
  'POST /v1/sandboxes/:id/networks': 'owner',
  'DELETE /v1/sandboxes/:id/networks/:net': 'owner',
  'GET /v1/sandboxes/:id/disks': 'owner',
  'POST /v1/sandboxes/:id/disks': 'owner',
  'DELETE /v1/sandboxes/:id/disks/:disk_id': 'owner',
  'GET /v1/sandboxes/:id/egress': 'owner',
  'PUT /v1/sandboxes/:id/egress': 'owner',
  'GET /v1/sandboxes/:id/egress/decisions': 'owner',
  'GET /v1/sandboxes/:id/egress/flows': 'owner',
  'GET /v1/sandboxes/:id/metrics': 'token',
  'GET /v1/sandboxes/:id/metrics/timeseries': 'token',
  'GET /v1/sandboxes/:id/bandwidth': 'token',
  'POST /v1/sandboxes/:id/bandwidth/recharge': 'owner',
  'POST /v1/sandboxes/:id/exec': 'token',
  'GET /v1/sandboxes/:id/files': 'token',
  'PUT /v1/sandboxes/:id/files': 'token',
  'POST /v1/sandboxes/:id/processes': 'token',
  'GET /v1/sandboxes/:id/processes': 'token',
  'GET /v1/sandboxes/:id/processes/:process_id': 'token',
  'DELETE /v1/sandboxes/:id/processes/:process_id': 'token',
  'GET /v1/sandboxes/:id/processes/:process_id/connect': 'token',
  'GET /v1/sandboxes/:id/processes/:process_id/wait': 'token',
  'POST /v1/sandboxes/:id/processes/:process_id/input': 'token',
  'POST /v1/sandboxes/:id/processes/:process_id/stdin/close': 'token',
  'POST /v1/sandboxes/:id/processes/:process_id/resize': 'token',
  'POST /v1/sandboxes/:id/processes/:process_id/signal': 'token',
  'POST /v1/sandboxes/:id/shell': 'token',
  'GET /v1/sandboxes/:id/shell-ws': 'token',
  'POST /v1/sandboxes/:id/shell-ticket': 'token',
  'POST /v1/sandboxes/:id/tunnel/:port': 'token',
  'POST /v1/sandboxes/:id/ssh-pubkeys': 'owner',
  'POST /v1/sandboxes/:id/access-token': 'owner',
  'GET /v1/sandboxes/:id/access-token': 'owner',
  'DELETE /v1/sandboxes/:id/access-token': 'owner',
  'POST /v1/sandboxes/:id/access-token/rotate': 'owner',
}

const ALLOWED = 'allowed'
const NONE = '401 unauthorized'
const FORBIDDEN = '403 token_not_allowed'
const ABSENT = '404 not_found'
const EXPECTED = {
  public: { none: ALLOWED, foreign: ALLOWED, otherToken: ALLOWED, ownToken: ALLOWED, owner: ALLOWED },
  tools: { none: NONE, foreign: ALLOWED, otherToken: ALLOWED, ownToken: ALLOWED, owner: ALLOWED },
  account: { none: NONE, foreign: ALLOWED, otherToken: FORBIDDEN, ownToken: FORBIDDEN, owner: ALLOWED },
  operator: {
    none: NONE,
    foreign: '403 operator_required',
    otherToken: FORBIDDEN,
    ownToken: FORBIDDEN,
    owner: '403 operator_required',
  },
  owner: { none: NONE, foreign: ABSENT, otherToken: ABSENT, ownToken: FORBIDDEN, owner: ALLOWED },
  token: { none: NONE, foreign: ABSENT, otherToken: ABSENT, ownToken: ALLOWED, owner: ALLOWED },
  byIp: { none: NONE, foreign: ABSENT, otherToken: FORBIDDEN, ownToken: FORBIDDEN, owner: ALLOWED },
} as const

/** A body that passes the checks of its route. */
const BODIES: Record<string, object> = {
  'POST /v1/sandboxes': { shape: 's-1vcpu-256mb' },
  'POST /v1/networks': { name: 'backend' },
  'POST /v1/disks': {
    name: 'media',
    kind: 's3',
    config: { bucket: 'media', endpoint: 'http://127.0.0.1:1' },
    credentials: { access_key: 'a', secret_key: 's' },
  },
  'PATCH /v1/disks/:idOrName': { credentials: { access_key: 'a', secret_key: 's' } },
  'POST /v1/sandboxes/:id/disks': { disk_id: 'media', mount_path: '/mnt' },
  'POST /v1/templates': { name: 'tools', dockerfile: 'FROM debian:13' },
  'POST /v1/webhook-endpoints': { url: 'https://hooks.invalid/' },
  'POST /v1/sandboxes/:id/networks': { id: 'backend' },
  'POST /v1/sandboxes/:id/bandwidth/recharge': { add_bytes: 1 },
  'POST /v1/sandboxes/:id/resize': { disk_mib: 20_480 },
  'POST /v1/sandboxes/:id/exec': { cmd: 'true' },
  'POST /v1/sandboxes/:id/ssh-pubkeys': { keys: [] },
  'POST /v1/sandboxes/:id/processes': { cmd: 'true' },
  'POST /v1/sandboxes/:id/processes/:process_id/input': { data_base64: '' },
  'POST /v1/sandboxes/:id/processes/:process_id/resize': { rows: 1, cols: 1 },
  'POST /v1/sandboxes/:id/processes/:process_id/signal': { signal: 'SIGTERM' },
}
const QUERIES: Record<string, string> = {
  'GET /v1/sandboxes/:id/files': '?path=/absent',
  'PUT /v1/sandboxes/:id/files': '?path=/file',
  'DELETE /v1/sandboxes/:id/disks/:disk_id': '?mount_path=/mnt',
}

const { app, user, create, send } = await createHostedApp({ host: { memMib: 10_000_000 } })
const owner = await user({ plan: 'local' })
const foreigner = await user({ plan: 'local' })

async function newSandbox(): Promise<{ id: string; ip: string; token: string }> {
  const { id, ip } = (await create(owner)).body.data
  const { token } = (await send('POST', `/v1/sandboxes/${id}/access-token`, owner)).body.data
  return { id, ip, token }
}

async function ask(route: string, path: string, key: string | undefined): Promise<string> {
  const response = await app.inject({
    method: route.split(' ')[0] as 'GET',
    url: path,
    headers: key === undefined ? {} : { 'x-api-key': key },
    ...(BODIES[route] ? { payload: BODIES[route] } : {}),
  })
  const { statusCode: status } = response
  assert.notEqual(status, 500, `${route}: ${response.payload}`)
  const refused = status === 401 || status === 403 || (status === 404 && response.payload.includes('sandbox not found'))
  return refused ? `${status} ${response.json().data.code}` : ALLOWED
}

// A HEAD is its GET without the body; Fastify adds it.
const routes = app.routeList.filter((route) => route.method !== 'HEAD').map(({ method, url }) => `${method} ${url}`)

test('every route has a rule, and every rule a route', () => {
  assert.deepEqual([...routes].sort(), Object.keys(MATRIX).sort())
})

for (const [route, kind] of Object.entries(MATRIX)) {
  test(`${route} is for ${kind}`, async () => {
    const mine = await newSandbox()
    const other = await newSandbox()
    const url = route.split(' ')[1]!.replace(':id', mine.id).replace(':ip', mine.ip)
    const path = `${url.replace(':process_id', 'proc_1').replace(':port', '80')}${QUERIES[route] ?? ''}`

    // In this order, because the last two may destroy the sandbox.
    const found = {
      none: await ask(route, path, undefined),
      foreign: await ask(route, path, foreigner.key),
      otherToken: await ask(route, path, other.token),
      ownToken: await ask(route, path, mine.token),
      owner: await ask(route, path, owner.key),
    }

    assert.deepEqual(found, EXPECTED[kind])
  })
}
