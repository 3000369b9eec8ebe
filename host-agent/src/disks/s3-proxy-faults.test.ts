/** The S3 proxy between a guest and a server that fails in every way that it can. The server checks nothing; others do that. */
import assert from 'node:assert/strict'
import { createHash, randomBytes } from 'node:crypto'
import { once } from 'node:events'
import http, { type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { after, beforeEach, test } from 'node:test'
import { scaleLimit } from '@warren/kit/testing/slowness'
import { until } from '@warren/kit/testing/until'
import { addGuest, openTestProxy, type Reply } from './testing/proxy.ts'

/** Longer than the pauses between three attempts. */
const ANSWER_MS = scaleLimit(2_000)
const SHORT_MS = scaleLimit(500)
const CREDENTIALS = { accessKey: 'AKIAVISIBLE', secretKey: 'never-to-be-seen' }

type Handler = (request: IncomingMessage, response: ServerResponse, attempt: number) => void

let handle: Handler
let seen: { method: string; url: string; authorization: string; complete: boolean }[]
const server = http.createServer((request, response) => {
  const entry = {
    method: request.method ?? '',
    url: request.url ?? '',
    authorization: String(request.headers.authorization),
    complete: false,
  }
  seen.push(entry)
  request.on('end', () => (entry.complete = true)).on('error', () => {})
  response.on('error', () => {})
  handle(request, response, seen.length)
})
server.listen(0, '127.0.0.1')
await once(server, 'listening')
const { port } = server.address() as AddressInfo
after(() => {
  server.closeAllConnections()
  server.close()
})
beforeEach(() => {
  seen = []
})

const { proxy, warnings } = await openTestProxy(
  { after },
  { deadlines: { connectMs: SHORT_MS, answerMs: ANSWER_MS, slowAnswerMs: ANSWER_MS, stallMs: SHORT_MS } },
)
const target = { endpoint: `http://127.0.0.1:${port}`, credentials: CREDENTIALS }
const guest = await addGuest(proxy, target, { subPath: 'sub' })

const answer =
  (status: number, body = '', headers: Record<string, string> = {}): Handler =>
  (request, response) => {
    request.resume()
    response.writeHead(status, { 'content-length': String(Buffer.byteLength(body)), ...headers })
    response.end(body)
  }
const errorXml = (code: string, more = '') => `<?xml version="1.0"?><Error><Code>${code}</Code>${more}</Error>`
const digest = (body: string | Buffer) => ({ 'content-md5': createHash('md5').update(body).digest('base64') })
const cut: Handler = (request) => request.socket.destroy()
const raw =
  (text: string): Handler =>
  (request) =>
    request.socket.end(text)
const silent: Handler = () => {}

type Case = {
  handle: Handler
  call?: () => Promise<Reply>
  expect: [status: number, code: string]
  attempts?: number
}
const get = () => guest.request('GET', '/key')
const list = () => guest.request('GET', '/?list-type=2&prefix=a')
const put = (headers: Record<string, string> = {}) =>
  guest.request('PUT', '/key', { headers: { ...digest('x'), ...headers }, body: 'x' })
const LONG = randomBytes(3 * 1024 ** 2)
const putLong = () => guest.request('PUT', '/key', { headers: digest(LONG), body: LONG })
const copy = () => guest.request('PUT', '/key', { headers: { 'x-amz-copy-source': '/other' } })
const complete = () =>
  guest.request('POST', '/key?uploadId=abc', {
    body: '<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>"a"</ETag></Part></CompleteMultipartUpload>',
  })

const SECRET_ERROR = errorXml(
  'SignatureDoesNotMatch',
  '<Message>AKIAVISIBLE</Message><AWSAccessKeyId>AKIAVISIBLE</AWSAccessKeyId><StringToSign>AKIAVISIBLE</StringToSign>',
)
const CASES: Record<string, Case> = {
  '500 of a read is tried three times': { handle: answer(500), expect: [502, 'UpstreamError'], attempts: 3 },
  '500 of an unconditional short write is tried three times': {
    handle: answer(500),
    call: put,
    expect: [502, 'UpstreamError'],
    attempts: 3,
  },
  '500 of a conditional write is not tried again': {
    handle: answer(500),
    call: () => put({ 'if-none-match': '*' }),
    expect: [502, 'UpstreamError'],
    attempts: 1,
  },
  '500 of a completion is not tried again': {
    handle: answer(500),
    call: complete,
    expect: [502, 'UpstreamError'],
    attempts: 1,
  },
  '500 of a streamed upload is not tried again': {
    handle: answer(500),
    call: putLong,
    expect: [502, 'UpstreamError'],
    attempts: 1,
  },
  '503 is tried three times, then the guest is asked to wait': {
    handle: answer(503, errorXml('SlowDown')),
    expect: [503, 'SlowDown'],
    attempts: 3,
  },
  '429 is like 503 of the guest': { handle: answer(429), expect: [503, 'SlowDown'], attempts: 1 },
  'one 500 and then an answer is the answer': {
    handle: (request, response, attempt) => answer(attempt === 1 ? 500 : 200, 'x')(request, response, attempt),
    expect: [200, ''],
    attempts: 2,
  },
  'one cut connection and then an answer is the answer': {
    handle: (request, response, attempt) => (attempt === 1 ? cut : answer(200, 'x'))(request, response, attempt),
    expect: [200, ''],
    attempts: 2,
  },
  '403 with XML has the code of the server': {
    handle: answer(403, SECRET_ERROR),
    expect: [403, 'SignatureDoesNotMatch'],
  },
  '403 with a page is AccessDenied': { handle: answer(403, '<html>no</html>'), expect: [403, 'AccessDenied'] },
  '401 is 403, because 401 means an unknown mount': { handle: answer(401), expect: [403, 'UpstreamRefused'] },
  '404 without text is NotFound': { handle: answer(404), expect: [404, 'NotFound'] },
  '418 is a refusal': { handle: answer(418), expect: [400, 'UpstreamRefused'] },
  '501 is passed on': { handle: answer(501, errorXml('NotImplemented')), expect: [501, 'NotImplemented'] },
  'a code with a line break is not passed on': {
    handle: answer(400, errorXml('Bad\r\nX-Evil: 1')),
    expect: [400, 'UpstreamRefused'],
  },
  'an answer that is not HTTP': {
    handle: raw('not HTTP at all\r\n\r\n'),
    expect: [502, 'UpstreamInvalid'],
    attempts: 1,
  },
  'an upgrade that was not asked for': {
    handle: raw('HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n'),
    expect: [502, 'UpstreamInvalid'],
  },
  'a connection that is cut before an answer': { handle: cut, expect: [502, 'UpstreamError'], attempts: 3 },
  'no answer at all': { handle: silent, expect: [504, 'UpstreamTimeout'], attempts: 1 },
  'no answer to a streamed upload, whose body is not read': {
    handle: silent,
    call: putLong,
    expect: [504, 'UpstreamTimeout'],
    attempts: 1,
  },
  'a listing that never ends': {
    handle: (_request, response) => response.write('<ListBucketResult>'),
    call: list,
    expect: [504, 'UpstreamTimeout'],
  },
  'a listing that is not XML': { handle: answer(200, 'listing'), call: list, expect: [502, 'UpstreamInvalid'] },
  'a listing with a document type': {
    handle: answer(200, '<!DOCTYPE x [<!ENTITY a "b">]><ListBucketResult/>'),
    call: list,
    expect: [502, 'UpstreamInvalid'],
  },
  'a listing that is too long': {
    handle: answer(200, `<ListBucketResult>${' '.repeat(5 * 1024 ** 2)}</ListBucketResult>`),
    call: list,
    expect: [502, 'UpstreamInvalid'],
  },
  'an error inside of the answer to a copy': {
    handle: answer(200, errorXml('NoSuchKey')),
    call: copy,
    expect: [404, 'NoSuchKey'],
  },
  'an error inside of the answer to a completion, after spaces that kept the connection open': {
    handle: answer(200, `   \n\n  ${errorXml('InternalError')}`),
    call: complete,
    expect: [502, 'UpstreamError'],
  },
  'a completion without an ETag': {
    handle: answer(200, '<CompleteMultipartUploadResult></CompleteMultipartUploadResult>'),
    call: complete,
    expect: [502, 'UpstreamInvalid'],
  },
  'a redirect to another host': {
    handle: answer(307, '', { location: `http://127.0.0.9:${port}/media/sub/key` }),
    expect: [502, 'WrongEndpoint'],
    attempts: 1,
  },
  'a redirect to another object': {
    handle: answer(307, '', { location: '/media/elsewhere' }),
    expect: [502, 'WrongEndpoint'],
    attempts: 1,
  },
  'a redirect to another object by dot segments': {
    handle: answer(307, '', { location: '/media/sub/../elsewhere' }),
    expect: [502, 'WrongEndpoint'],
    attempts: 1,
  },
  'a redirect without a location': { handle: answer(301), expect: [502, 'WrongEndpoint'], attempts: 1 },
  'a redirect to itself is followed twice': {
    handle: answer(307, '', { location: '/media/sub/key' }),
    expect: [502, 'WrongEndpoint'],
    attempts: 3,
  },
  'a redirect to itself and then an answer is the answer': {
    handle: (request, response, attempt) =>
      (attempt === 1 ? answer(307, '', { location: `http://127.0.0.1:${port}/media/sub/key` }) : answer(200, 'x'))(
        request,
        response,
        attempt,
      ),
    expect: [200, ''],
    attempts: 2,
  },
}

for (const [name, { handle: handler, call = get, expect, attempts }] of Object.entries(CASES)) {
  test(name, async () => {
    handle = handler

    const reply = await call()

    assert.deepEqual([reply.status, reply.code], expect, reply.text)
    if (attempts !== undefined) assert.equal(seen.length, attempts)
    assert.doesNotMatch(reply.text + JSON.stringify(reply.headers), /AKIAVISIBLE|never-to-be-seen/)
  })
}

test('a 503 says when to try again', async () => {
  handle = answer(503)

  assert.equal((await get()).headers['retry-after'], '1')
})

test('an upload that the server accepts before it has the body is not acknowledged', async () => {
  handle = (_request, response) => response.end()
  const body = Buffer.alloc(48 * 1024 ** 2) // More than the kernel buffers for a server that does not read.

  const reply = await guest.request('PUT', '/key', { headers: digest(body), body })

  assert.deepEqual([reply.status, reply.code], [502, 'UpstreamInvalid'])
})

test('an upload that the server refuses before it has the body gets that answer', async () => {
  handle = (_request, response) => {
    response.writeHead(403, { 'content-length': '0' })
    response.end()
  }

  const reply = await putLong()

  assert.deepEqual([reply.status, reply.code], [403, 'AccessDenied'])
})

test('an object that the server cuts short is cut short for the guest', async () => {
  handle = (request, response) => {
    response.writeHead(200, { 'content-length': '100000' })
    response.write('x'.repeat(50_000), () => request.socket.destroy())
  }

  await assert.rejects(get(), /aborted|closed|ECONNRESET/)
})

test('an object whose server stops in the middle is cut short for the guest', async () => {
  handle = (_request, response) => {
    response.writeHead(200, { 'content-length': '100000' })
    response.write('x'.repeat(50_000))
  }

  await assert.rejects(get(), /aborted|closed|ECONNRESET/)
  await until(async () => (await proxy.counts())!.inFlight === 0)
})

test('keys of a listing that are outside of the prefix, or that no guest could name, are left out', async () => {
  const object = (key: string) =>
    `<Contents><Key>${key}</Key><LastModified>x</LastModified><ETag>"1"</ETag><Size>1</Size></Contents>`
  const keys = [
    'sub/a1',
    'sub/a/../b',
    'sub/a//b',
    'sub/b',
    'secret',
    'sub/../secret',
    'subway/a',
    'sub/a2',
    'sub/',
    '/a',
  ]
  const prefixes = ['sub/a3/', 'sub/a/../', 'other/', 'sub/a//', '/'].map(
    (one) => `<CommonPrefixes><Prefix>${one}</Prefix></CommonPrefixes>`,
  )
  handle = answer(200, `<ListBucketResult>${keys.map(object).join('')}${prefixes.join('')}</ListBucketResult>`)

  const reply = await list()

  assert.deepEqual(
    [...reply.text.matchAll(/<Key>([^<]*)/g)].map(([, key]) => key),
    ['a1', 'a2'],
  )
  assert.deepEqual(
    [...reply.text.matchAll(/<CommonPrefixes><Prefix>([^<]*)/g)].map(([, prefix]) => prefix),
    ['a3/'],
  )
  assert.match(reply.text, /<KeyCount>3</)
})

test('the region auto follows the server, and a fixed one does not', async () => {
  const wantsRegion: Handler = (request, response, attempt) => {
    const isRight = String(request.headers.authorization).includes('/eu-central-9/s3/')
    const malformed = errorXml('AuthorizationHeaderMalformed', '<Region>eu-central-9</Region>')
    return (isRight ? answer(200, 'x') : answer(400, malformed))(request, response, attempt)
  }
  handle = wantsRegion
  const auto = await addGuest(proxy, target)
  const fixed = await addGuest(proxy, target, { region: 'us-east-1' })

  const first = await auto.request('GET', '/key')
  const second = await auto.request('GET', '/key')
  const refused = await fixed.request('GET', '/key')

  assert.deepEqual([first.status, second.status], [200, 200])
  assert.deepEqual([refused.status, refused.code], [400, 'AuthorizationHeaderMalformed'])
  assert.equal(seen.length, 4, 'the region is remembered')
})

test('a server that names another region each time is not followed for long', async () => {
  handle = (request, response, attempt) =>
    answer(400, errorXml('AuthorizationHeaderMalformed', `<Region>r-${attempt}</Region>`))(request, response, attempt)
  const auto = await addGuest(proxy, target)

  const reply = await auto.request('GET', '/key')

  assert.deepEqual([reply.status, reply.code, seen.length], [400, 'AuthorizationHeaderMalformed', 2])
})

test('a server that cannot be reached', async () => {
  const closed = await addGuest(proxy, { ...target, endpoint: 'http://127.0.0.1:1' })
  const unknown = await addGuest(proxy, { ...target, endpoint: 'http://no-such-host.localdomain.invalid' })

  const replies = [await closed.request('GET', '/key'), await unknown.request('GET', '/key')]

  for (const { status, code } of replies) assert.deepEqual([status, code], [502, 'UpstreamUnreachable'])
})

test('an endpoint at an address that is not allowed is not connected to', async () => {
  handle = answer(200)
  const endpoints = ['127.0.0.1', 'localhost', '[::1]', '169.254.169.254', '10.0.0.1', '[::ffff:127.0.0.1]']

  for (const host of endpoints) {
    const outsider = await addGuest(proxy, { ...target, endpoint: `http://${host}:${port}` }, { allowLoopback: false })
    const reply = await outsider.request('GET', '/key')
    assert.deepEqual([reply.status, reply.code], [403, 'EndpointRefused'], host)
  }
  assert.equal(seen.length, 0)
})

test('nothing of this was unexpected for the proxy', async () => {
  const { requests } = (await proxy.counts())!

  assert.deepEqual(warnings, [])
  assert.deepEqual(
    requests.filter(({ status }) => status === 500),
    [],
  )
})
