/** The S3 proxy between a guest and real S3 servers. */
import assert from 'node:assert/strict'
import { createHash, randomBytes } from 'node:crypto'
import { once } from 'node:events'
import http from 'node:http'
import { after, test } from 'node:test'
import { S3_SERVERS, startS3Server } from '@warren/kit/testing/s3-server'
import { addGuest, openTestProxy, SANDBOX } from './testing/proxy.ts'

const md5 = (data: string | Buffer): string => createHash('md5').update(data).digest('base64')
const digest = (data: string | Buffer) => ({ 'content-md5': md5(data) })
const keysOf = (text: string): string[] => [...text.matchAll(/<Key>([^<]*)<\/Key>/g)].map(([, key]) => key!)
const prefixesOf = (text: string): string[] =>
  [...text.matchAll(/<CommonPrefixes><Prefix>([^<]*)<\/Prefix>/g)].map(([, prefix]) => prefix!)
const textOf = (text: string, name: string): string => new RegExp(`<${name}>([^<]*)</${name}>`).exec(text)?.[1] ?? ''

const { proxy } = await openTestProxy({ after })

for (const name of S3_SERVERS) {
  const server = await startS3Server({ after }, name)
  await server.createBucket('media')
  const guest = await addGuest(proxy, server, { subPath: 'team/a' })

  test(`${name}: an object is written below the prefix, read in ranges, and deleted`, async () => {
    const headers = { ...digest('hello world'), 'content-type': 'text/plain', 'x-amz-meta-mode': '33188' }

    const put = await guest.request('PUT', '/docs/hello%20world%2B.txt', {
      headers,
      body: 'hello world',
    })
    const head = await guest.request('HEAD', '/docs/hello%20world%2B.txt')
    const range = await guest.request('GET', '/docs/hello%20world%2B.txt', { headers: { range: 'bytes=6-8' } })

    assert.equal(put.status, 200, put.text)
    assert.deepEqual(await server.listKeys('media'), ['team/a/docs/hello world+.txt'])
    assert.equal(head.status, 200)
    assert.equal(head.headers['content-length'], '11')
    assert.equal(head.headers['content-type'], 'text/plain')
    assert.equal(head.headers['x-amz-meta-mode'], '33188')
    assert.equal(head.headers.etag, put.headers.etag)
    assert.deepEqual([range.status, range.text, range.headers['content-range']], [206, 'wor', 'bytes 6-8/11'])

    const deleted = await guest.request('DELETE', '/docs/hello%20world%2B.txt')
    const absent = await guest.request('GET', '/docs/hello%20world%2B.txt')
    const absentHead = await guest.request('HEAD', '/docs/hello%20world%2B.txt')

    assert.equal(deleted.status, 204)
    assert.deepEqual([absent.status, absent.code], [404, 'NoSuchKey'])
    assert.deepEqual([absentHead.status, absentHead.code], [404, 'NotFound'])
    assert.deepEqual(await server.listKeys('media'), [])
  })

  test(`${name}: conditions reach the server`, async () => {
    const put = (headers: Record<string, string>) =>
      guest.request('PUT', '/lock', { headers: { ...digest('x'), ...headers }, body: 'x' })

    const first = await put({ 'if-none-match': '*' })
    const second = await put({ 'if-none-match': '*' })
    const etag = String(first.headers.etag)
    const wrong = await put({ 'if-match': '"0123456789abcdef0123456789abcdef"' })
    const right = await put({ 'if-match': etag })
    const unchanged = await guest.request('GET', '/lock', { headers: { 'if-none-match': etag } })

    assert.equal(first.status, 200, first.text)
    assert.deepEqual([second.status, second.code], [412, 'PreconditionFailed'])
    assert.deepEqual([wrong.status, wrong.code], [412, 'PreconditionFailed'])
    assert.equal(right.status, 200)
    assert.deepEqual([unchanged.status, unchanged.text], [304, ''])
    await guest.request('DELETE', '/lock')
  })

  test(`${name}: a listing has relative keys, pages, and nothing of other prefixes`, async () => {
    const guest = await addGuest(proxy, server, { subPath: 'list/a' })
    const names = ['list/ab', 'list/a2/x', 'other', 'list/a/c++ &é/f 1', 'list/a/c++ &é/f2', 'list/a/z', 'list/a/y']
    for (const key of names) await server.request('PUT', 'media', key, { body: 'seven b' })

    const root = await guest.request('GET', '/?list-type=2&delimiter=/&prefix=')
    const below = await guest.request('GET', '/?list-type=2&encoding-type=url&prefix=c%2B%2B%20%26%C3%A9%2F')
    const pages: string[] = []
    for (let token = ''; ; ) {
      const page = await guest.request('GET', `/?list-type=2&max-keys=1${token && `&continuation-token=${token}`}`)
      assert.equal(page.status, 200, page.text)
      pages.push(...keysOf(page.text))
      token = textOf(page.text, 'NextContinuationToken')
      if (token === '') break
    }

    assert.deepEqual(keysOf(root.text), ['y', 'z'])
    assert.deepEqual(prefixesOf(root.text), ['c%2B%2B%20%26%C3%A9/'])
    assert.deepEqual(keysOf(below.text), ['c%2B%2B%20%26%C3%A9/f%201', 'c%2B%2B%20%26%C3%A9/f2'])
    assert.match(below.text, /<Size>7<\/Size>/)
    assert.deepEqual(pages, [...keysOf(below.text), 'y', 'z'])
    assert.doesNotMatch(root.text + below.text, /media|list\/|other/)
  })

  test(`${name}: an object is copied inside of the mount, with its metadata or with new one`, async () => {
    const body = 'copy me'
    await guest.request('PUT', '/copy/from%20here', { headers: { ...digest(body), 'x-amz-meta-a': '1' }, body })

    const source = { 'x-amz-copy-source': '/copy/from%20here' }
    const copied = await guest.request('PUT', '/copy/to', { headers: source })
    const replaced = await guest.request('PUT', '/copy/new', {
      headers: { ...source, 'x-amz-metadata-directive': 'REPLACE', 'x-amz-meta-a': '2' },
    })
    const missing = await guest.request('PUT', '/copy/x', { headers: { 'x-amz-copy-source': '/copy/nothing' } })

    assert.equal(copied.status, 200, copied.text)
    assert.match(copied.text, /<CopyObjectResult><ETag>/)
    assert.equal((await guest.request('GET', '/copy/to')).text, body)
    assert.equal((await guest.request('HEAD', '/copy/to')).headers['x-amz-meta-a'], '1')
    assert.equal(replaced.status, 200, replaced.text)
    assert.equal((await guest.request('HEAD', '/copy/new')).headers['x-amz-meta-a'], '2')
    assert.deepEqual([missing.status, missing.code], [404, 'NoSuchKey'])
  })

  test(`${name}: a large object is uploaded in parts, one of them copied, and read back`, async () => {
    const first = randomBytes(6 * 1024 ** 2)
    const last = randomBytes(1024)
    await guest.request('PUT', '/big/source', { headers: digest(first), body: first })

    const created = await guest.request('POST', '/big/object?uploads', { headers: { 'x-amz-meta-kind': 'big' } })
    const uploadId = encodeURIComponent(textOf(created.text, 'UploadId'))
    const part = (number: number) => `/big/object?partNumber=${number}&uploadId=${uploadId}`
    const one = await guest.request('PUT', part(1), { headers: digest(first), body: first })
    const two = await guest.request('PUT', part(2), {
      headers: { 'x-amz-copy-source': '/big/source', 'x-amz-copy-source-range': `bytes=0-${5 * 1024 ** 2 - 1}` },
    })
    const three = await guest.request('PUT', part(3), { headers: digest(last), body: last })
    const etags = [
      String(one.headers.etag),
      textOf(two.text, 'ETag').replaceAll('&quot;', '"'),
      String(three.headers.etag),
    ]
    const parts = etags.map((etag, i) => `<Part><PartNumber>${i + 1}</PartNumber><ETag>${etag}</ETag></Part>`)
    const body = `<CompleteMultipartUpload>${parts.join('')}</CompleteMultipartUpload>`
    const completed = await guest.request('POST', `/big/object?uploadId=${uploadId}`, { body })
    const read = await guest.request('GET', '/big/object')

    assert.deepEqual([created.status, one.status, two.status, three.status], [200, 200, 200, 200], two.text)
    assert.equal(completed.status, 200, completed.text)
    assert.match(completed.text, /<CompleteMultipartUploadResult><ETag>/)
    assert.ok(read.body.equals(Buffer.concat([first, first.subarray(0, 5 * 1024 ** 2), last])))
    assert.equal(read.headers['x-amz-meta-kind'], 'big')
  })

  test(`${name}: an upload is aborted, and then unknown`, async () => {
    const created = await guest.request('POST', '/aborted?uploads')
    const uploadId = encodeURIComponent(textOf(created.text, 'UploadId'))

    const aborted = await guest.request('DELETE', `/aborted?uploadId=${uploadId}`)
    const headers = digest('x')
    const late = await guest.request('PUT', `/aborted?partNumber=1&uploadId=${uploadId}`, { headers, body: 'x' })

    assert.equal(aborted.status, 204)
    assert.deepEqual([late.status, late.code], [404, 'NoSuchUpload'])
  })

  test(`${name}: a body that does not have its digest is not stored, whether it is short or streamed`, async () => {
    for (const length of [10, 512 * 1024]) {
      for (const headers of [digest('other'), { 'x-amz-checksum-crc32c': 'AAAAAA==' }]) {
        const put = await guest.request('PUT', '/damaged', { headers, body: randomBytes(length) })

        assert.deepEqual([put.status, put.code], [400, 'BadDigest'])
        assert.equal((await guest.request('HEAD', '/damaged')).status, 404)
      }
    }
  })

  test(`${name}: a guest that waits before it sends a body is asked for it only if the request is valid`, async () => {
    const send = async (target: string) => {
      const authorization = `Bearer ${guest.token}`
      const request = http.request({
        ...{ host: '127.0.0.1', port: proxy.port, localAddress: SANDBOX, method: 'PUT', path: target, agent: false },
        headers: { ...digest('x'), authorization, 'content-length': '1', expect: '100-continue' },
      })
      let isAsked = false
      request.on('continue', () => {
        isAsked = true
        request.end('x')
      })
      request.flushHeaders()
      const [response] = (await once(request, 'response')) as [http.IncomingMessage]
      request.destroy()
      return [isAsked, response.statusCode]
    }

    assert.deepEqual(await send('/waited'), [true, 200])
    assert.deepEqual(await send('/../waited'), [false, 400])
  })

  test(`${name}: a read-only mount reads and refuses every write`, async () => {
    await guest.request('PUT', '/kept', { headers: digest('x'), body: 'x' })
    const reader = await addGuest(proxy, server, { subPath: 'team/a', readOnly: true })
    const writes: [string, string, Record<string, string>][] = [
      ['PUT', '/kept', digest('y')],
      ['PUT', '/kept', { 'x-amz-copy-source': '/kept' }],
      ['DELETE', '/kept', {}],
      ['POST', '/kept?uploads', {}],
      ['DELETE', '/kept?uploadId=abc', {}],
      ['PUT', '/kept?partNumber=1&uploadId=abc', digest('y')],
    ]

    for (const [method, target, headers] of writes) {
      const body = headers['content-md5'] === undefined ? '' : 'y'
      const reply = await reader.request(method, target, { headers, body })
      assert.deepEqual([reply.status, reply.code], [403, 'ReadOnly'], `${method} ${target}`)
    }
    assert.equal((await reader.request('GET', '/kept')).text, 'x')
    assert.equal((await reader.request('HEAD', '/')).status, 200)
    assert.equal((await reader.request('GET', '/?list-type=2&prefix=kept')).status, 200)
  })

  test(`${name}: new credentials are used at once, and the old ones no longer`, async () => {
    await guest.request('PUT', '/rotated', { headers: digest('x'), body: 'x' })
    const old = server.credentials
    await server.stop()
    await server.start({ accessKey: 'AKIAROTATED', secretKey: 'the-next-secret' })

    const before = await guest.request('GET', '/rotated')
    await proxy.setMounts([{ ...guest.mount, credentials: server.credentials }])
    const afterwards = await guest.request('GET', '/rotated')
    await proxy.setMounts([{ ...guest.mount, credentials: { ...server.credentials, secretKey: 'wrong' } }])
    const wrong = await guest.request('GET', '/rotated')

    assert.ok([403, 404].includes(before.status), before.text)
    assert.deepEqual([afterwards.status, afterwards.text], [200, 'x'])
    assert.deepEqual([wrong.status, wrong.code], [403, 'SignatureDoesNotMatch'])
    assert.doesNotMatch(before.text + wrong.text, new RegExp(`${old.accessKey}|AKIAROTATED|secret`))
    await server.stop()
    await server.start(old)
    await proxy.setMounts([guest.mount])
  })
}
