/** The probe names what to correct. Real stores show what they answer; servers of the test what can go wrong before that. */
import assert from 'node:assert/strict'
import { once } from 'node:events'
import { createServer, type RequestListener } from 'node:http'
import { type AddressInfo, createServer as createTcpServer } from 'node:net'
import { after, test } from 'node:test'
import { createOutboundGuard } from '@warren/kit/outbound/guard'
import { S3_SERVERS, startS3Server } from '@warren/kit/testing/s3-server'
import { DISK_PROBE_TIMEOUT_MS } from '@warren/protocol'
import { createTestApp } from '../testing/app.ts'
import { STORE_CONFIG } from '../testing/disks.ts'

const { app, deps, user } = await createTestApp({ config: STORE_CONFIG })
const ada = await user({ plan: 'enterprise' })
let disks = 0

type Given = { config: object; credentials?: object; who?: typeof ada }

/** The fault that a registration reports, or undefined if it succeeds. */
async function register({ config, credentials = { access_key: 'a', secret_key: 's' }, who = ada }: Given) {
  const payload = { name: `disk-${++disks}`, kind: 's3', config: { bucket: 'media', ...config }, credentials }
  const response = await app.inject({ method: 'POST', url: '/v1/disks', headers: who.headers, payload })
  if (response.statusCode === 200) {
    await app.inject({ method: 'DELETE', url: `/v1/disks/disk-${disks}`, headers: who.headers })
    return undefined
  }
  assert.equal(response.statusCode, 400, response.payload)
  const { code, ...fault } = response.json().data
  assert.equal(code, 'validation_failed')
  return fault as Record<string, string>
}

async function listen(handler: RequestListener, host = '127.0.0.1'): Promise<string> {
  const server = createServer(handler)
  server.listen(0, host)
  await once(server, 'listening')
  after(() => {
    server.closeAllConnections()
    server.close()
  })
  return `http://${host}:${(server.address() as AddressInfo).port}`
}

for (const name of S3_SERVERS) {
  const store = await startS3Server({ after }, name)
  await store.createBucket('media')
  const { endpoint } = store
  const { accessKey: access_key, secretKey: secret_key } = store.credentials

  test(`${name}: a bucket that exists can be registered`, async () => {
    assert.equal(await register({ config: { endpoint }, credentials: { access_key, secret_key } }), undefined)
  })

  test(`${name}: a bucket that does not exist is named`, async () => {
    const fault = await register({ config: { endpoint, bucket: 'absent' }, credentials: { access_key, secret_key } })

    assert.deepEqual(fault, { 'config.bucket': 'bucket absent was not found' })
  })

  test(`${name}: a wrong secret and an unknown key have different errors`, async () => {
    const wrong = await register({ config: { endpoint }, credentials: { access_key, secret_key: 'wrong' } })
    const unknown = await register({ config: { endpoint }, credentials: { access_key: 'AKIANOBODY', secret_key } })

    assert.match(wrong?.credentials ?? '', /the secret key does not belong to this access key/)
    assert.equal(unknown?.credentials, 'the store does not know this access key')
  })

  test(`${name}: a store that was stopped refuses connections`, async () => {
    await store.stop()

    assert.deepEqual(await register({ config: { endpoint }, credentials: { access_key, secret_key } }), {
      'config.endpoint': 'could not be reached: connection refused',
    })
  })
}

test('a name that does not exist is reported, with a hint where the bucket is part of it', async (t) => {
  t.mock.property(
    deps,
    'diskTargets',
    createOutboundGuard([], (_host, done) => done(Object.assign(new Error('absent'), { code: 'ENOTFOUND' }), [])),
  )

  assert.deepEqual(await register({ config: { endpoint: 'https://s3.invalid', use_path_style: true } }), {
    'config.endpoint': 'could not be reached: the host name was not found',
  })
  assert.match(
    (await register({ config: { endpoint: 'https://s3.invalid' } }))?.['config.endpoint'] ?? '',
    /the host name was not found \(media\.s3\.invalid\); set use_path_style if/,
  )
})

test('a server without TLS behind https, and one that does not speak HTTP, are reported', async () => {
  const plain = await listen((_request, response) => response.end())
  const tcp = createTcpServer((socket) => socket.on('error', () => {}).end('SSH-2.0-OpenSSH\r\n')).listen(
    0,
    '127.0.0.1',
  )
  await once(tcp, 'listening')
  after(() => tcp.close())
  const { port } = tcp.address() as AddressInfo

  const tls = await register({ config: { endpoint: plain.replace('http:', 'https:') } })
  const ssh = await register({ config: { endpoint: `http://127.0.0.1:${port}` } })

  assert.equal(tls?.['config.endpoint'], 'could not be reached: the TLS handshake failed')
  assert.equal(ssh?.['config.endpoint'], 'could not be reached: the response is not HTTP')
})

test('a store that does not answer is given up after three seconds, also in the middle of its answer', async () => {
  const silent = await listen(() => {})
  const slow = await listen((request, response) => {
    response.writeHead(403)
    if (request.method === 'GET') response.write('<Error>')
    else response.end()
  })

  const faults = await Promise.all([silent, slow].map((endpoint) => register({ config: { endpoint } })))

  const text = `did not answer within ${DISK_PROBE_TIMEOUT_MS / 1000} s`
  assert.deepEqual(faults, Array(2).fill({ 'config.endpoint': text }))
})

test('the region that a store names is used where none was given, and is to be corrected otherwise', async () => {
  const regions: string[] = []
  const endpoint = await listen((request, response) => {
    const region = /Credential=[^/]+\/\d+\/([^/]+)/.exec(request.headers.authorization ?? '')?.[1] ?? ''
    regions.push(region)
    response.writeHead(region === 'eu-west-3' ? 200 : 400, { 'x-amz-bucket-region': 'eu-west-3' }).end()
  })

  assert.equal(await register({ config: { endpoint } }), undefined)
  assert.deepEqual(regions, ['us-east-1', 'us-east-1', 'eu-west-3'])
  assert.match(
    (await register({ config: { endpoint, region: 'us-west-1' } }))?.['config.region'] ?? '',
    /^the bucket is in region eu-west-3; give that region/,
  )
})

test('redirects are not followed', async () => {
  let reached = 0
  const other = await listen((_request, response) => {
    reached++
    response.end()
  })
  const endpoint = await listen((_request, response) => response.writeHead(307, { location: other }).end())

  const fault = await register({ config: { endpoint } })

  assert.match(fault?.['config.endpoint'] ?? '', /^redirects to another address \(HTTP 307\)/)
  assert.equal(reached, 0)
})

const ANSWERS: [status: number, code: string, field: string, text: RegExp][] = [
  [
    403,
    'AccessDenied',
    'credentials',
    /^the store refuses access to bucket media with these credentials \(AccessDenied\)$/,
  ],
  [403, 'constructor', 'credentials', /\(constructor\)$/],
  [403, '', 'credentials', /^the store refuses access to bucket media with these credentials$/],
  [401, 'ExpiredToken', 'credentials', /expired/],
  [403, 'RequestTimeTooSkewed', 'config.endpoint', /clock/],
  [400, 'InvalidBucketName', 'config.bucket', /^media is not the name of a bucket/],
  [500, 'InternalError', 'config.endpoint', /^answered HTTP 500 \(InternalError\)/],
  [503, '', 'config.endpoint', /^answered HTTP 503 to/],
]
for (const [status, code, field, text] of ANSWERS) {
  test(`a store that answers ${status} ${code} makes the fault ${field}`, async () => {
    const body = code === '' ? 'x'.repeat(100_000) : `<Error><Code>${code}</Code><Message>secret</Message></Error>`
    const endpoint = await listen((_request, response) => response.writeHead(status).end(body))

    const fault = await register({ config: { endpoint } })

    assert.deepEqual(Object.keys(fault ?? {}), [field])
    assert.match(fault![field]!, text)
  })
}

test('private, loopback, link-local and metadata addresses are refused without a connection, by name and by address', async (t) => {
  let reached = 0
  const endpoint = await listen((_request, response) => {
    reached++
    response.end()
  })
  const names: Record<string, string> = { 'rebound.example': '127.0.0.1', 'internal.example': '10.0.0.7' }
  const guard = createOutboundGuard([], (host, done) =>
    done(null, [{ address: names[host] ?? '169.254.169.254', family: 4 }]),
  )
  t.mock.property(deps, 'diskTargets', guard)
  const { port } = new URL(endpoint)
  const hosts = ['127.0.0.1', '2130706433', '[::1]', '[::ffff:127.0.0.1]', '10.0.0.1', '169.254.169.254', '192.168.1.1']

  for (const host of [...hosts, ...Object.keys(names), 'metadata.example']) {
    const fault = await register({ config: { endpoint: `http://${host}:${port}`, use_path_style: true } })
    assert.deepEqual(fault, { 'config.endpoint': 'is or resolves to an address to which disks may not connect' }, host)
  }
  assert.equal(reached, 0)
})

test('the local user of a single machine may use a store on loopback, and no other user', async (t) => {
  t.mock.property(deps, 'diskTargets', createOutboundGuard([]))
  t.mock.property(deps.config, 'localUser', true)
  const endpoint = await listen((_request, response) => response.end())

  assert.equal(await register({ config: { endpoint }, who: await user({ plan: 'local' }) }), undefined)
  assert.match((await register({ config: { endpoint } }))?.['config.endpoint'] ?? '', /may not connect/)
})
