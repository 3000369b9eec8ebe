import assert from 'node:assert/strict'
import { test } from 'node:test'
import { checkBucketName, chooseRegion, parseS3Endpoint, renderS3Path, resolveS3Bucket } from './endpoint.ts'

/** Endpoint, bucket, path style; the host and the path of the key `a b/c`. */
const ADDRESSES: [endpoint: string, bucket: string, usePathStyle: boolean, host: string, path: string][] = [
  ['https://s3.eu-west-1.amazonaws.com', 'media', false, 'media.s3.eu-west-1.amazonaws.com', '/a%20b/c'],
  ['https://s3.eu-west-1.amazonaws.com', 'media', true, 's3.eu-west-1.amazonaws.com', '/media/a%20b/c'],
  ['http://minio.example:9000', 'media', false, 'media.minio.example:9000', '/a%20b/c'],
  ['http://minio.example:80', 'media', true, 'minio.example', '/media/a%20b/c'],
  ['https://store.example/s3/', 'media', true, 'store.example', '/s3/media/a%20b/c'],
  ["https://store.example/it's", 'media', false, 'media.store.example', '/it%27s/a%20b/c'],
  // Where a bucket cannot be part of a host name.
  ['http://127.0.0.1:9000', 'media', false, '127.0.0.1:9000', '/media/a%20b/c'],
  ['http://[::1]:9000', 'media', false, '[::1]:9000', '/media/a%20b/c'],
  ['https://store.example', 'my.media', false, 'store.example', '/my.media/a%20b/c'],
  ['http://store.example', 'my.media', false, 'my.media.store.example', '/a%20b/c'],
  ['https://store.example', 'My_Media', false, 'store.example', '/My_Media/a%20b/c'],
]

for (const [endpoint, bucket, usePathStyle, host, path] of ADDRESSES) {
  test(`${bucket} at ${endpoint} with ${usePathStyle ? 'path-style' : 'virtual-host'} addressing is ${host}${path}`, () => {
    const resolved = resolveS3Bucket({ endpoint, bucket, usePathStyle })

    assert.deepEqual({ host: resolved.host, path: renderS3Path(resolved, 'a b/c') }, { host, path })
  })
}

test('the path of a bucket has no slash at its end', () => {
  const pathStyle = resolveS3Bucket({ endpoint: 'http://127.0.0.1:9000', bucket: 'media', usePathStyle: true })
  const virtualHost = resolveS3Bucket({ endpoint: 'http://store.example', bucket: 'media', usePathStyle: false })

  assert.equal(renderS3Path(pathStyle, ''), '/media')
  assert.equal(renderS3Path(virtualHost, ''), '/')
})

test('an address of IPv6 is connected to without its brackets', () => {
  assert.deepEqual(parseS3Endpoint('http://[::1]:9000'), {
    isSecure: false,
    hostname: '::1',
    port: 9000,
    basePath: '',
  })
})

for (const endpoint of [
  's3.example',
  'ftp://s3.example',
  'http://user:pw@s3.example',
  'http://s3.example/?a=b',
  'http://s3.example/%ff',
]) {
  test(`the endpoint ${endpoint} is refused`, () => {
    assert.throws(() => parseS3Endpoint(endpoint), /endpoint/)
  })
}

test('a bucket whose name would lead elsewhere is refused', () => {
  for (const bucket of [
    'a/b',
    '..',
    'a..b',
    'x@evil',
    'x:80',
    'x#y',
    'x?y',
    'a%2fb',
    '',
    'a',
    '.ab',
    'a b',
    'é'.repeat(4),
  ]) {
    assert.notEqual(checkBucketName(bucket), undefined, bucket)
    assert.throws(() => resolveS3Bucket({ endpoint: 'http://s3.example', bucket, usePathStyle: true }), /bucket/)
  }
})

test('the region auto follows from the host name', () => {
  const regionAt = (hostname: string, region = 'auto') => chooseRegion(region, parseS3Endpoint(`https://${hostname}`))

  assert.equal(regionAt('s3.eu-west-1.amazonaws.com'), 'eu-west-1')
  assert.equal(regionAt('s3.dualstack.us-gov-east-1.amazonaws.com'), 'us-gov-east-1')
  assert.equal(regionAt('s3.cn-north-1.amazonaws.com.cn'), 'cn-north-1')
  assert.equal(regionAt('s3.amazonaws.com'), 'us-east-1')
  assert.equal(regionAt('abc.r2.cloudflarestorage.com'), 'auto')
  assert.equal(regionAt('s3.example'), 'us-east-1')
  assert.equal(regionAt('s3.eu-west-1.amazonaws.com', 'ap-south-1'), 'ap-south-1')
})
