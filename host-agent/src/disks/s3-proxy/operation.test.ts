import assert from 'node:assert/strict'
import { test } from 'node:test'
import { S3ProxyError } from './error.ts'
import { readHeaders } from './guest-headers.ts'
import { parseOperation } from './operation.ts'

const MD5 = { 'content-md5': 'XrY7u+Ae7tCTyyK7j1rNww==' }
const parse = (method: string, target: string, headers: Record<string, string> = {}) =>
  parseOperation(method, target, readHeaders(Object.entries(headers).flat()))

test('each operation of the protocol is recognised by method, path, query and copy source', () => {
  const source = { 'x-amz-copy-source': '/b' }
  const body = { 'content-length': '5', ...MD5 }
  const operations: [string, string, Record<string, string>, string][] = [
    ['HEAD', '/', {}, 'headBucket'],
    ['GET', '/?list-type=2&prefix=a%2Fb%20&delimiter=/&max-keys=1000&encoding-type=url', {}, 'listObjects'],
    ['HEAD', '/a', {}, 'headObject'],
    ['GET', '/a/b/', { range: 'bytes=-5' }, 'getObject'],
    ['PUT', '/a', body, 'putObject'],
    ['PUT', '/dir/', { 'content-length': '0' }, 'putObject'],
    ['PUT', '/a', source, 'copyObject'],
    ['DELETE', '/a', {}, 'deleteObject'],
    ['POST', '/a?uploads', {}, 'createUpload'],
    ['POST', '/a?uploads=', {}, 'createUpload'],
    ['PUT', '/a?uploadId=2~x_.-%2B%3D&partNumber=10000', body, 'uploadPart'],
    ['PUT', '/a?partNumber=1&uploadId=x', source, 'copyPart'],
    ['POST', '/a?uploadId=x', { 'content-length': '5' }, 'completeUpload'],
    ['DELETE', '/a?uploadId=x', {}, 'abortUpload'],
  ]

  for (const [method, target, headers, name] of operations) assert.equal(parse(method, target, headers).name, name)
})

test('keys, sources and parameters are decoded once', () => {
  assert.equal(parse('GET', '/a%20b/%C3%A9%252F%2Bc%5C..d').key, 'a b/é%2F+c\\..d')
  assert.equal(parse('PUT', '/a', { 'x-amz-copy-source': '/b%20c' }).source, 'b c')
  assert.deepEqual(parse('GET', '/?list-type=2&prefix=a%2Fb%2520').query, { 'list-type': '2', prefix: 'a/b%20' })
})

test('only what is meant for the server is kept', () => {
  const { headers } = parse('PUT', '/a', {
    host: 'evil.example',
    authorization: 'Bearer x',
    connection: 'keep-alive',
    'user-agent': 'x',
    'content-length': '5',
    'content-type': 'text/plain',
    'x-forwarded-for': '1.2.3.4',
    'X-Amz-Meta-Mode': '420',
    'If-None-Match': '*',
    ...MD5,
  })

  assert.deepEqual(headers, { ...MD5, 'content-type': 'text/plain', 'if-none-match': '*', 'x-amz-meta-mode': '420' })
})

test('reads, unconditional writes and parts may be repeated; conditional writes and steps of uploads may not', () => {
  const isRepeatable = (...call: Parameters<typeof parse>) => parse(...call).isRepeatable

  assert.equal(isRepeatable('GET', '/a', { 'if-match': '"x"' }), true)
  assert.equal(isRepeatable('PUT', '/a', { 'content-length': '0' }), true)
  assert.equal(isRepeatable('PUT', '/a', { 'content-length': '0', 'if-match': '"x"' }), false)
  assert.equal(isRepeatable('DELETE', '/a', { 'if-match': '"x"' }), false)
  assert.equal(isRepeatable('POST', '/a?uploads'), false)
})

const REFUSED: [string, string, Record<string, string>, number][] = [
  ['GET', '/../a', {}, 400],
  ['GET', '/a/..', {}, 400],
  ['GET', '/a/%2e%2E/b', {}, 400],
  ['GET', '/a/.%2e', {}, 400],
  ['GET', '/./a', {}, 400],
  ['GET', '/a/b%5C..%5Cc', {}, 400],
  ['GET', '/a%2fb', {}, 400],
  ['GET', '//a', {}, 400],
  ['GET', '/a//b', {}, 400],
  ['GET', '/a%00', {}, 400],
  ['GET', '/a%01', {}, 400],
  ['GET', '/%ff', {}, 400],
  ['GET', '/%ed%a0%80', {}, 400],
  ['GET', '/a%', {}, 400],
  ['GET', '/a b', {}, 400],
  ['GET', '/a\\b', {}, 400],
  ['GET', 'http://other/a', {}, 400],
  ['GET', '*', {}, 400],
  ['GET', '', {}, 400],
  ['GET', '/a?x?y', {}, 400],
  ['GET', '/a#b', {}, 400],
  ['GET', '/a?versionId=1', {}, 501],
  ['GET', '/a?acl', {}, 501],
  ['PUT', '/a?acl', { 'content-length': '0' }, 501],
  ['PUT', '/a?tagging', { 'content-length': '0' }, 501],
  ['GET', '/', {}, 501],
  ['GET', '/?list-type=1', {}, 400],
  ['GET', '/?list-type=2&list-type=2', {}, 400],
  ['GET', '/?list-type=2&prefix=a&prefix=', {}, 400],
  ['GET', '/?list-type=2&prefix=a%2F..%2Fb', {}, 400],
  ['GET', '/?list-type=2&prefix=/a', {}, 400],
  ['GET', '/?list-type=2&Prefix=a', {}, 501],
  ['GET', '/?list-type=2&delimiter=a', {}, 400],
  ['GET', '/?list-type=2&max-keys=1001', {}, 400],
  ['GET', '/?list-type=2&start-after=a', {}, 501],
  ['GET', '/?list-type=2;prefix=a', {}, 400],
  ['GET', '/?list-type=2&prefix=a+b', {}, 400],
  ['GET', '/?uploads', {}, 501],
  ['POST', '/?delete', { 'content-length': '0' }, 501],
  ['DELETE', '/', {}, 501],
  ['PUT', '/', { 'content-length': '0' }, 501],
  ['PATCH', '/a', {}, 501],
  ['PUT', '/a?uploadId=..&partNumber=1', { 'content-length': '0' }, 400],
  ['PUT', '/a?uploadId=a%2Fb&partNumber=1', { 'content-length': '0' }, 400],
  ['PUT', '/a?uploadId=x&partNumber=0', { 'content-length': '0' }, 400],
  ['PUT', '/a?uploadId=x&partNumber=10001', { 'content-length': '0' }, 400],
  ['PUT', '/a?uploadId=x', { 'content-length': '0' }, 501],
  ['PUT', '/a', { 'x-amz-copy-source': 'b' }, 400],
  ['PUT', '/a', { 'x-amz-copy-source': '/../b' }, 400],
  ['PUT', '/a', { 'x-amz-copy-source': '/b%2F..%2F..%2Fc' }, 400],
  ['PUT', '/a', { 'x-amz-copy-source': '/b?versionId=1' }, 400],
  ['PUT', '/a', { 'x-amz-copy-source': '/b', 'x-amz-meta-a': '1' }, 400],
  ['PUT', '/a', { 'x-amz-copy-source': '/b', 'content-length': '3' }, 400],
  ['PUT', '/a', {}, 411],
  ['PUT', '/a', { 'transfer-encoding': 'chunked' }, 411],
  ['PUT', '/a', { 'content-length': '5' }, 400],
  ['PUT', '/a', { 'content-length': '5368709121', ...MD5 }, 413],
  ['PUT', '/a', { 'content-length': '0', 'content-encoding': 'aws-chunked' }, 400],
  ['PUT', '/a', { 'content-length': '0', 'x-amz-acl': 'public-read' }, 400],
  ['PUT', '/a', { 'content-length': '0', 'x-amz-meta-a': 'é' }, 400],
  ['PUT', '/a', { 'content-length': '0', 'x-amz-meta-a': 'a'.repeat(1_000), 'x-amz-meta-b': 'a'.repeat(1_100) }, 400],
  ['PUT', '/a', { 'content-length': '0', 'if-modified-since': 'Tue, 17 Nov 2026 12:00:00 GMT' }, 400],
  ['GET', '/a', { range: 'bytes=0-1,5-6' }, 400],
  ['GET', '/a', { 'if-match': '"a", "b"' }, 400],
  ['GET', '/a', { 'x-amz-server-side-encryption-customer-key': 'x' }, 400],
  ['GET', '/a', { 'content-length': '3' }, 400],
  ['DELETE', '/a', { 'if-none-match': '*' }, 400],
  ['DELETE', '/a', { range: 'bytes=0-1' }, 400],
]

for (const [method, target, headers, status] of REFUSED) {
  test(`${method} ${target.slice(0, 40)} ${JSON.stringify(headers).slice(0, 60)} is ${status}`, () => {
    assert.throws(
      () => parse(method, target, headers),
      (error) => error instanceof S3ProxyError && error.status === status,
    )
  })
}

test('a repeated header is refused, whatever it is', () => {
  assert.throws(() => readHeaders(['Host', 'a', 'host', 'a']), S3ProxyError)
})
