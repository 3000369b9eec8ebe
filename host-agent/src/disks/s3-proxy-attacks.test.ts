/**
 * Requests of a hostile guest that try to leave its bucket or prefix, on real S3 servers. Its mount is `team/a` of the bucket `media`;
 * the same credentials open everything else. No row may return a secret, or change anything outside of the prefix.
 *
 * Rows with `naive` are also sent through a proxy that checks requests and forwards them, as a first version would. There they
 * succeed on the named servers, so each of them would find a proxy that makes the same mistake.
 */
import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import { after, test } from 'node:test'
import { isDeepStrictEqual } from 'node:util'
import { S3_SERVERS, type S3ServerName, startS3Server } from '@warren/kit/testing/s3-server'
import { sendNaively } from './testing/naive-proxy.ts'
import {
  addGuest,
  type Call,
  type Guest,
  OTHER_SANDBOX,
  openTestProxy,
  requestProxy,
  SANDBOX,
} from './testing/proxy.ts'

const SECRET = 'the secret of another sandbox'
const OUTSIDE = { media: ['root', 'team/ab', 'team/b/secret'], vault: ['secret', 'team/a/secret'] }
const md5 = (text: string) => ({ 'content-md5': createHash('md5').update(text).digest('base64') })
const write: Call = { body: 'evil', headers: md5('evil') }
const copyOf = (source: string): Call => ({ headers: { 'x-amz-copy-source': source } })

type Row = {
  name: string
  request: [method: string, target: string, call?: Call]
  status: number
  /** The servers on which the naive proxy returns a secret or changes something. SeaweedFS refuses dot segments. */
  naive?: readonly S3ServerName[]
}

const ROWS: Row[] = [
  // Out of the prefix by the path.
  { name: 'dot segments', request: ['GET', '/../b/secret'], status: 400, naive: ['versitygw'] },
  { name: 'dot segments after a name', request: ['GET', '/x/../../b/secret'], status: 400, naive: ['versitygw'] },
  { name: 'dot segments into another bucket', request: ['GET', '/../../../vault/secret'], status: 400, naive: [] },
  { name: 'a dot and dot segments', request: ['GET', '/./../b/secret'], status: 400, naive: ['versitygw'] },
  { name: 'encoded dots', request: ['GET', '/%2e%2e/b/secret'], status: 400, naive: ['versitygw'] },
  { name: 'half encoded dots', request: ['GET', '/.%2E/b/secret'], status: 400, naive: ['versitygw'] },
  { name: 'encoded slashes', request: ['GET', '/..%2fb%2fsecret'], status: 400, naive: ['versitygw'] },
  { name: 'everything encoded', request: ['GET', '/%2E%2E%2Fb%2Fsecret'], status: 400, naive: ['versitygw'] },
  { name: 'dots encoded twice', request: ['GET', '/%252e%252e/b/secret'], status: 404 },
  { name: 'slashes encoded twice', request: ['GET', '/..%252fb%252fsecret'], status: 404 },
  { name: 'backslashes', request: ['GET', '/..\\b\\secret'], status: 400 },
  { name: 'encoded backslashes', request: ['GET', '/..%5cb%5csecret'], status: 400 },
  { name: 'an overlong encoding of dots', request: ['GET', '/%c0%ae%c0%ae/b/secret'], status: 400 },
  { name: 'a parameter of a path segment', request: ['GET', '/..;/b/secret'], status: 400 },
  { name: 'an empty segment', request: ['GET', '//vault/secret'], status: 400 },
  { name: 'NUL', request: ['GET', '/x%00/../../b/secret'], status: 400 },
  { name: 'a line break and a header in the key', request: ['GET', '/x%0d%0aHost:%20vault'], status: 400 },
  { name: 'an absolute target', request: ['GET', 'http://127.0.0.1/vault/secret'], status: 400 },
  { name: 'HEAD of dot segments', request: ['HEAD', '/../b/secret'], status: 400 },
  { name: 'overwriting', request: ['PUT', '/../b/secret', write], status: 400, naive: ['versitygw'] },
  { name: 'writing beside the prefix', request: ['PUT', '/..%2fb%2fnew', write], status: 400, naive: ['versitygw'] },
  { name: 'deleting', request: ['DELETE', '/../b/secret'], status: 400, naive: ['versitygw'] },
  { name: 'uploading in parts', request: ['POST', '/../b/new?uploads'], status: 400 },
  { name: 'a key that is too long', request: ['GET', `/${'a/'.repeat(600)}x`], status: 400 },

  // Out of the prefix by a listing.
  { name: 'a prefix with dot segments', request: ['GET', '/?list-type=2&prefix=..%2Fb%2F'], status: 400 },
  { name: 'a second prefix', request: ['GET', '/?list-type=2&prefix=x&prefix='], status: 400, naive: S3_SERVERS },
  { name: 'an absolute prefix', request: ['GET', '/?list-type=2&prefix=/'], status: 400 },
  { name: 'a prefix in capitals', request: ['GET', '/?list-type=2&Prefix=team/b'], status: 501 },
  { name: 'a prefix after a semicolon', request: ['GET', '/?list-type=2;prefix='], status: 400 },
  { name: 'another delimiter', request: ['GET', '/?list-type=2&delimiter=team'], status: 400 },
  { name: 'a start after a key', request: ['GET', '/?list-type=2&start-after=team/b'], status: 501 },
  { name: 'a forged token', request: ['GET', '/?list-type=2&continuation-token=team%2Fb'], status: 400 },
  {
    name: 'a forged token of our form',
    request: [
      'GET',
      `/?list-type=2&continuation-token=${Buffer.from('team/b').toString('base64url')}.${'A'.repeat(22)}`,
    ],
    status: 400,
  },
  { name: 'the first version of listings', request: ['GET', '/?prefix=team/b&marker='], status: 501 },
  { name: 'a listing of versions', request: ['GET', '/?versions'], status: 501 },
  { name: 'a listing of uploads', request: ['GET', '/?uploads'], status: 501 },
  { name: 'a million keys', request: ['GET', '/?list-type=2&max-keys=1000000'], status: 400 },

  // Out of the prefix by a copy.
  { name: 'a copy of another bucket', request: ['PUT', '/x', copyOf('/vault/secret')], status: 404 },
  { name: 'a copy without a slash', request: ['PUT', '/x', copyOf('vault/secret')], status: 400 },
  { name: 'a copy by dot segments', request: ['PUT', '/x', copyOf('/../b/secret')], status: 400, naive: ['versitygw'] },
  {
    name: 'a copy by encoded segments',
    request: ['PUT', '/x', copyOf('/%2e%2e%2fb%2fsecret')],
    status: 400,
    naive: ['versitygw'],
  },
  { name: 'a copy of a version', request: ['PUT', '/x', copyOf('/own?versionId=../b/secret')], status: 400 },
  { name: 'a copy by an ARN', request: ['PUT', '/x', copyOf('arn:aws:s3:::vault/secret')], status: 400 },
  {
    name: 'two sources',
    request: ['PUT', '/x', { headers: { 'x-amz-copy-source': ['/own', '/../b/secret'] } }],
    status: 400,
  },
  {
    name: 'a copied part by dot segments',
    request: ['PUT', '/x?partNumber=1&uploadId=abc', copyOf('/../b/secret')],
    status: 400,
  },

  // Operations that the protocol does not have.
  { name: 'deleting many keys', request: ['POST', '/?delete', write], status: 501 },
  { name: 'deleting the bucket', request: ['DELETE', '/'], status: 501 },
  { name: 'creating the bucket', request: ['PUT', '/'], status: 501 },
  { name: 'a policy for everyone', request: ['PUT', '/?policy', write], status: 501 },
  {
    name: 'an ACL for everyone',
    request: ['PUT', '/own?acl', { headers: { 'x-amz-acl': 'public-read-write' } }],
    status: 501,
  },
  {
    name: 'an ACL in a header',
    request: ['PUT', '/x', { ...write, headers: { ...write.headers, 'x-amz-acl': 'public-read' } }],
    status: 400,
  },
  { name: 'another version', request: ['GET', '/own?versionId=null'], status: 501 },
  { name: 'a signed URL', request: ['GET', '/own?X-Amz-Signature=x&X-Amz-Credential=y'], status: 501 },
  { name: 'a query language', request: ['POST', '/own?select&select-type=2', write], status: 501 },
  { name: 'another method', request: ['PATCH', '/own', write], status: 501 },

  // Headers and parameters that would change the meaning.
  {
    name: 'a date for the signature',
    request: ['GET', '/own', { headers: { 'x-amz-date': '20200101T000000Z' } }],
    status: 400,
  },
  { name: 'a session token', request: ['GET', '/own', { headers: { 'x-amz-security-token': 'x' } }], status: 400 },
  {
    name: 'a redirect for websites',
    request: ['PUT', '/x', { ...write, headers: { ...write.headers, 'x-amz-website-redirect-location': '/' } }],
    status: 400,
  },
  {
    name: 'an upload id that is a path',
    request: ['PUT', '/x?partNumber=1&uploadId=..%2F..%2Fvault', write],
    status: 400,
  },
  { name: 'an upload id of dots', request: ['DELETE', '/x?uploadId=..'], status: 400 },
  { name: 'a second upload id', request: ['DELETE', '/x?uploadId=a&uploadId=b'], status: 400 },
  {
    name: 'metadata that is too long',
    request: ['PUT', '/x', { ...write, headers: { ...write.headers, 'x-amz-meta-a': 'a'.repeat(3_000) } }],
    status: 400,
  },
  {
    name: 'a body that is too long',
    request: ['PUT', '/x', { headers: { ...md5(''), 'content-length': '99999999999999' } }],
    status: 413,
  },
  {
    name: 'XML with entities',
    request: [
      'POST',
      '/x?uploadId=a',
      {
        body: '<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]><CompleteMultipartUpload>&b;</CompleteMultipartUpload>',
      },
    ],
    status: 400,
  },
]

const { proxy } = await openTestProxy({ after })

for (const name of S3_SERVERS) {
  const server = await startS3Server({ after }, name)
  for (const [bucket, keys] of Object.entries(OUTSIDE)) {
    await server.createBucket(bucket)
    for (const key of keys) await server.request('PUT', bucket, key, { body: SECRET })
  }
  const guest = await addGuest(proxy, server, { subPath: 'team/a' })
  const other = await addGuest(proxy, server, { subPath: 'team/b', sandboxIp: OTHER_SANDBOX })
  await guest.request('PUT', '/own', { body: 'own', headers: md5('own') })

  /** Everything outside of the prefix, and what is in it apart from the object of the guest. */
  const readOutside = async () => {
    const state: Record<string, string> = {}
    for (const bucket of Object.keys(OUTSIDE)) {
      for (const key of await server.listKeys(bucket)) {
        if (bucket === 'media' && key === 'team/a/own') continue
        state[`${bucket}/${key}`] = (await server.request('GET', bucket, key)).body.toString()
      }
    }
    return state
  }
  const intact = await readOutside()
  const restore = async () => {
    for (const [bucket, keys] of Object.entries(OUTSIDE)) {
      for (const key of await server.listKeys(bucket)) {
        if (!keys.includes(key) && key !== 'team/a/own') await server.request('DELETE', bucket, key)
      }
      for (const key of keys) await server.request('PUT', bucket, key, { body: SECRET })
    }
  }

  for (const { name: row, request, status, naive: expected } of ROWS) {
    test(`${name}: ${row} is ${status}`, async () => {
      const reply = await guest.request(...request)

      assert.equal(reply.status, status, `${reply.status} ${reply.text}`)
      assert.ok(!reply.text.includes(SECRET) && !/team\/|vault/.test(reply.text), reply.text)
      assert.deepEqual(await readOutside(), intact)
    })
    if (expected === undefined) continue
    test(`${name}: ${row} ${expected.includes(name) ? 'succeeds' : 'fails as well'} with a naive proxy`, async () => {
      const answer = await sendNaively(server, { bucket: 'media', prefix: 'team/a' }, ...request)
      const isChanged = !isDeepStrictEqual(await readOutside(), intact)
      await restore()

      assert.equal(isChanged || answer.includes(SECRET) || answer.includes('team/b'), expected.includes(name), answer)
    })
  }

  test(`${name}: tokens of others, of other addresses, and other credentials are all unknown`, async () => {
    const removed = await addGuest(proxy, server, { subPath: 'team/b' })
    await proxy.removeMounts([removed.mount.id])
    const send = (from: string, authorization?: string | string[]) =>
      requestProxy(proxy.port, 'GET', '/own', {
        from,
        ...(authorization === undefined ? {} : { headers: { authorization } }),
      })
    const replies = await Promise.all([
      send(SANDBOX, `Bearer ${other.token}`),
      send(OTHER_SANDBOX, `Bearer ${guest.token}`),
      send(SANDBOX, `Bearer ${removed.token}`),
      send(SANDBOX),
      send(SANDBOX, 'Bearer '),
      send(SANDBOX, `Bearer ${guest.token}x`),
      send(SANDBOX, `Bearer ${guest.token.slice(0, -1)}`),
      send(SANDBOX, `Bearer ${guest.token}, Bearer ${other.token}`),
      send(SANDBOX, `bearer ${guest.token}`),
      send(SANDBOX, `Basic ${Buffer.from(guest.token).toString('base64')}`),
      send(SANDBOX, `Bearer ${guest.mount.tokenHash}`),
      send(SANDBOX, `AWS4-HMAC-SHA256 Credential=${server.credentials.accessKey}/20261117/us-east-1/s3/aws4_request`),
    ])

    for (const { status, code } of replies) assert.deepEqual([status, code], [401, 'UnknownMount'])
    const twice = await send(SANDBOX, [`Bearer ${guest.token}`, `Bearer ${other.token}`])
    assert.equal(twice.status, 400)
  })

  test(`${name}: the token of a page is refused in another listing and for another mount`, async () => {
    for (const key of ['page/1', 'page/2']) await guest.request('PUT', `/${key}`, write)
    for (const key of ['page/1', 'page/2']) await other.request('PUT', `/${key}`, write)
    const tokenOf = async (from: Guest) => {
      const { text } = await from.request('GET', '/?list-type=2&prefix=page/&max-keys=1')
      return /<NextContinuationToken>([^<]+)</.exec(text)?.[1]
    }
    const [own, foreign] = [await tokenOf(guest), await tokenOf(other)]
    const list = (query: string) => guest.request('GET', `/?list-type=2&max-keys=1&${query}`)

    assert.match((await list(`prefix=page/&continuation-token=${own}`)).text, /<Key>page\/2</)
    assert.equal((await list(`prefix=page/&continuation-token=${foreign}`)).status, 400)
    assert.equal((await list(`prefix=&continuation-token=${own}`)).status, 400)
    assert.equal((await list(`continuation-token=${own}`)).status, 400)
    await restore()
  })

  test(`${name}: an upload of another sandbox cannot be extended, completed or aborted`, async () => {
    const created = await other.request('POST', '/upload?uploads')
    const id = encodeURIComponent(/<UploadId>([^<]+)</.exec(created.text)?.[1] ?? '')
    const part = await other.request('PUT', `/upload?partNumber=1&uploadId=${id}`, {
      body: 'theirs',
      headers: md5('theirs'),
    })
    const parts = `<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>${part.headers.etag}</ETag></Part></CompleteMultipartUpload>`

    const replies = [
      await guest.request('PUT', `/upload?partNumber=1&uploadId=${id}`, write),
      await guest.request('POST', `/upload?uploadId=${id}`, { body: parts }),
      await guest.request('DELETE', `/upload?uploadId=${id}`),
    ]
    const completed = await other.request('POST', `/upload?uploadId=${id}`, { body: parts })

    for (const { status, text } of replies) assert.ok(status >= 400, text)
    assert.equal(completed.status, 200, completed.text)
    assert.equal((await other.request('GET', '/upload')).text, 'theirs')
    assert.equal((await guest.request('HEAD', '/upload')).status, 404)
    await restore()
  })

  const authorized = `Authorization: Bearer ${guest.token}\r\n`
  const RAW: Record<string, string> = {
    'a body that contains a request': `GET /own HTTP/1.1\r\nHost: d\r\n${authorized}Content-Length: 60\r\n\r\nDELETE /../b/secret HTTP/1.1\r\nHost: d\r\n${authorized}\r\n`,
    'a length and chunks': `PUT /x HTTP/1.1\r\nHost: d\r\n${authorized}Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /../b/secret HTTP/1.1\r\n\r\n`,
    'chunks with an odd name': `PUT /x HTTP/1.1\r\nHost: d\r\n${authorized}Transfer-Encoding: xchunked\r\nContent-Length: 4\r\n\r\nevil`,
    'a space before a colon': `PUT /x HTTP/1.1\r\nHost: d\r\n${authorized}Content-Length : 4\r\n\r\nevil`,
    'a folded header': `GET /own HTTP/1.1\r\nHost: d\r\n${authorized}X-Amz-Meta-A: a\r\n Range: x\r\n\r\n`,
    'a line feed in a header': `PUT /x HTTP/1.1\r\nHost: d\r\n${authorized}Content-Length: 0\r\nx-amz-meta-a: a\nx-amz-copy-source: /../b/secret\r\n\r\n`,
    'NUL in a header': `PUT /x HTTP/1.1\r\nHost: d\r\n${authorized}Content-Length: 0\r\nx-amz-meta-a: a\0b\r\n\r\n`,
    'a second request line': `GET /own HTTP/1.1 HTTP/1.1\r\nHost: d\r\n${authorized}\r\n`,
    'a space in the target': `GET /own /../b/secret HTTP/1.1\r\nHost: d\r\n${authorized}\r\n`,
    'two hosts': `GET /own HTTP/1.1\r\nHost: d\r\nHost: vault\r\n${authorized}\r\n`,
    'two tokens': `GET /own HTTP/1.1\r\nHost: d\r\n${authorized}Authorization: Bearer ${other.token}\r\n\r\n`,
    'a tunnel to the server': `CONNECT 127.0.0.1:${server.port} HTTP/1.1\r\nHost: 127.0.0.1:${server.port}\r\n${authorized}\r\n`,
  }
  for (const [row, text] of Object.entries(RAW)) {
    test(`${name}: ${row} is refused`, async () => {
      const answer = await guest.sendRaw(text)

      assert.doesNotMatch(answer, /^HTTP\/1.1 2\d\d/m)
      assert.ok(!answer.includes(SECRET))
      assert.deepEqual(await readOutside(), intact)
    })
  }

  test(`${name}: headers that other proxies obey change nothing`, async () => {
    const headers = {
      host: 'vault.s3.example',
      'x-forwarded-host': 'vault',
      'x-original-url': '/../b/secret',
      'x-rewrite-url': '/../b/secret',
      'x-http-method-override': 'DELETE',
      connection: 'keep-alive, x-amz-date, host, authorization',
      te: 'trailers',
    }

    const reply = await guest.request('GET', '/own', { headers })

    assert.deepEqual([reply.status, reply.text], [200, 'own'])
    assert.equal((await guest.request('GET', '/own')).text, 'own')
    assert.deepEqual(await readOutside(), intact)
  })
}
