/** `warren disks` as a program, against a server that has the routes of the API. */
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { json, text as readText } from 'node:stream/consumers'
import { after, test } from 'node:test'
import { readCredentials } from './credentials.ts'

const ID = 'sb-01ARZ3NDEKTSV4RRFFQ69G5FAV'
const DISK = {
  ...{ id: 'disk_01ARZ3NDEKTSV4RRFFQ69G5FAV', name: 'media', kind: 's3', created_at: '2026-01-01T00:00:00.000Z' },
  config: { bucket: 'b', endpoint: 'https://s3.example.com', region: 'auto', use_path_style: false },
}
const MOUNT = {
  disk_id: DISK.id,
  name: 'media',
  kind: 's3',
  config: DISK.config,
  mount_path: '/mnt/m',
  read_only: true,
}

let sent: [request: string, body?: unknown][] = []
/** The statuses that the mount has, one after the other. */
let statuses: object[] = []
const paged = (data: object[]) => ({
  data,
  pagination: { total: data.length, limit: 500, offset: 0, count: data.length },
})
const server = createServer(async (request, response) => {
  const route = `${request.method} ${request.url?.replace(/\?limit=.*/, '')}`
  const body = request.method === 'GET' || request.method === 'DELETE' ? undefined : await json(request)
  sent.push(body === undefined ? [route] : [route, body])
  const responses: Record<string, unknown> = {
    'GET /v1/disks': paged([DISK]),
    'POST /v1/disks': DISK,
    'PATCH /v1/disks/media': DISK,
    'DELETE /v1/disks/media': { deleted: true },
    [`GET /v1/sandboxes/${ID}/disks`]: paged(statuses.slice(0, 1).map((status) => ({ ...MOUNT, ...status }))),
    [`POST /v1/sandboxes/${ID}/disks`]: { ok: true, id: ID },
    [`DELETE /v1/sandboxes/${ID}/disks/media?mount_path=%2Fmnt%2Fm`]: { detached: true, warning: 'a is not saved' },
  }
  if (route.startsWith('GET') && statuses.length > 1) statuses.shift()
  const data = responses[route]
  const absent = { status: 'fail', data: { message: 'disk not found', code: 'not_found' } }
  response.writeHead(data ? 200 : 404).end(JSON.stringify(data ? { status: 'success', data } : absent))
})
server.listen(0, '127.0.0.1')
await once(server, 'listening')
after(() => {
  server.closeAllConnections()
  server.close()
})

const KEYS = { AWS_ACCESS_KEY_ID: 'AKIA', AWS_SECRET_ACCESS_KEY: 'very-secret' }

async function warren(args: string[], { env = {}, input = '' }: { env?: NodeJS.ProcessEnv; input?: string } = {}) {
  sent = []
  const main = path.join(import.meta.dirname, '../main.ts')
  const { port } = server.address() as AddressInfo
  const child = spawn(process.execPath, [main, 'disks', ...args], {
    env: {
      PATH: process.env.PATH,
      HOME: process.env.HOME,
      ...env,
      WARREN_BASE_URL: `http://127.0.0.1:${port}`,
      WARREN_API_KEY: 'k',
    },
  })
  child.stdin.end(input)
  const [stdout, stderr, [code]] = await Promise.all([
    readText(child.stdout),
    readText(child.stderr),
    once(child, 'close'),
  ])
  return { stdout, stderr, code }
}

test('add registers a bucket with the keys of the environment, and prints how to attach it', async () => {
  const args = [
    'add',
    'media',
    '--bucket',
    'b',
    '--endpoint',
    'https://s3.example.com',
    '--region',
    'eu-west-1',
    '--path-style',
  ]
  const { stdout, code } = await warren(args, { env: KEYS })

  assert.equal(code, 0)
  assert.match(stdout, /^media is registered: disk_\w+\. Attach it with: .* disks attach <sandbox> media <path>\n$/)
  assert.deepEqual(sent, [
    [
      'POST /v1/disks',
      {
        ...{ name: 'media', kind: 's3' },
        config: { bucket: 'b', endpoint: 'https://s3.example.com', region: 'eu-west-1', use_path_style: true },
        credentials: { access_key: 'AKIA', secret_key: 'very-secret' },
      },
    ],
  ])
})

test('rotate takes the secret from stdin or a file, and nothing is sent without one', async () => {
  const credentials = { access_key: 'NEW', secret_key: 'from-stdin' }
  const rotated = await warren(['rotate', 'media', '--access-key', 'NEW', '--secret-key-file', '-'], {
    input: 'from-stdin\n',
  })
  assert.deepEqual([rotated.code, sent], [0, [['PATCH /v1/disks/media', { credentials }]]])

  const without = await warren(['rotate', 'media', '--access-key', 'NEW'])
  assert.deepEqual([without.code, sent], [1, []])
  assert.match(without.stderr, /no secret key; set AWS_SECRET_ACCESS_KEY or give --secret-key-file/)
  await assert.rejects(readCredentials({}, {}), /no access key/)

  const folder = await mkdtemp(path.join(tmpdir(), 'warren-disks-'))
  after(() => rm(folder, { recursive: true }))
  const secretKeyFile = path.join(folder, 'secret')
  await writeFile(secretKeyFile, 'from-file\n')
  assert.deepEqual(await readCredentials({ secretKeyFile }, KEYS), { access_key: 'AKIA', secret_key: 'from-file' })
})

test('attach waits until the disk is mounted, or fails with the reason', async () => {
  statuses = [{ mount_status: 'pending' }, { mount_status: 'pending' }, { mount_status: 'mounted' }]
  const attach = ['attach', ID, 'media', '/mnt//m/', '--sub-path', 'p', '--read-only']
  const mounted = await warren(attach)

  assert.deepEqual([mounted.code, mounted.stdout], [0, 'media is mounted at /mnt//m/.\n'])
  assert.deepEqual(sent[0], [
    `POST /v1/sandboxes/${ID}/disks`,
    { disk_id: 'media', mount_path: '/mnt//m/', sub_path: 'p', read_only: true },
  ])
  statuses = [{ mount_status: 'failed', mount_error: 'the store refused the credentials' }]
  const failed = await warren(attach)
  assert.equal(failed.code, 1)
  assert.match(failed.stderr, /media could not be mounted: the store refused the credentials/)
  statuses = []
  assert.match((await warren(attach)).stderr, /was detached/)
  assert.equal((await warren([...attach, '--no-wait'])).code, 0)
})

test('ls shows disks, and the mounts of a sandbox', async () => {
  const disks = await warren(['ls'])
  statuses = [{ mount_status: 'failed', mount_error: 'no such bucket' }]
  const mounts = await warren(['ls', ID])
  const parsed = await warren(['ls', ID, '--json'])

  assert.match(
    disks.stdout,
    /ID +NAME +BUCKET +ENDPOINT +REGION +CREATED\ndisk_\w+ +media +b +https:\/\/s3\.example\.com +auto/,
  )
  assert.match(mounts.stdout, /\n\/mnt\/m +media +b +read-only +failed +no such bucket\n/)
  assert.deepEqual(JSON.parse(parsed.stdout), [{ ...MOUNT, ...statuses[0] }])
})

test('detach prints what was not saved, and rm what remains', async () => {
  const detached = await warren(['detach', ID, 'media', '/mnt/m'])
  const removed = await warren(['rm', 'media', 'none'])

  assert.deepEqual(
    [detached.code, detached.stdout, detached.stderr],
    [0, 'media is detached from /mnt/m.\n', 'warning: a is not saved\n'],
  )
  assert.equal(removed.stdout, 'Deleted media. Its bucket and the contents remain.\n')
  assert.deepEqual([removed.code, /disk not found/.test(removed.stderr)], [1, true])
})
