/** The expected signatures are those of AWS: its test suite for Signature Version 4, and the examples in the reference of S3. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { encodeS3, encodeS3Key, type S3Query } from './encode.ts'
import { EMPTY_PAYLOAD_SHA256, type S3Request, sha256Hex, signS3Request, signV4, UNSIGNED_PAYLOAD } from './sign.ts'

const SUITE_CREDENTIALS = { accessKey: 'AKIDEXAMPLE', secretKey: 'wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY' }
const SUITE_DATE = '20150830T123600Z'
const UNRESERVED = '-._~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz'

type SuiteCase = { path?: string; query?: S3Query; headers?: Record<string, string>; signature: string }

const SUITE: Record<string, SuiteCase> = {
  'get-vanilla': { signature: '5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31' },
  'get-vanilla-empty-query-key': {
    query: { Param1: 'value1' },
    signature: 'a67d582fa61cc504c4bae71f336f98b97f1ea3c7a6bfe1b6e45aec72011b9aeb',
  },
  'get-vanilla-query-order-key-case': {
    query: { Param2: 'value2', Param1: 'value1' },
    signature: 'b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500',
  },
  'get-vanilla-query-unreserved': {
    query: { [UNRESERVED]: UNRESERVED },
    signature: '9c3e54bfcdf0b19771a7f523ee5669cdf59bc7cc0884027167c21bb143a40197',
  },
  'get-vanilla-utf8-query': {
    query: { ሴ: 'bar' },
    signature: '2cdec8eed098649ff3a119c94853b13c643bcf08f8b0a1d91e12c9027818dd04',
  },
  'get-utf8': {
    path: `/${encodeS3Key('ሴ')}`,
    signature: '8318018e0b0f223aa2bbf98705b62bb787dc9c0e678f255a891fd03141be5d85',
  },
  'get-header-key-duplicate': {
    headers: { 'my-header1': 'value2,value2,value1' },
    signature: 'c9d5ea9f3f72853aea855b47ea873832890dbdd183b4468f858259531a5138ea',
  },
  'get-header-value-multiline': {
    headers: { 'my-header1': 'value1,value2,value3' },
    signature: 'ba17b383a53190154eb5fa66a1b836cc297cc0a3d70a5d00705980573d8ff790',
  },
}

for (const [name, { path = '/', query = {}, headers = {}, signature }] of Object.entries(SUITE)) {
  test(`the signature of ${name} is that of the test suite of AWS`, () => {
    const signed = { host: 'example.amazonaws.com', 'x-amz-date': SUITE_DATE, ...headers }
    const request: S3Request = { method: 'GET', path, query, headers: signed, payloadHash: EMPTY_PAYLOAD_SHA256 }

    const scope = { region: 'us-east-1', service: 'service' }
    const authorization = signV4(SUITE_CREDENTIALS, scope, request, SUITE_DATE)

    const names = Object.keys(signed).sort().join(';')
    assert.equal(
      authorization,
      `AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, SignedHeaders=${names}, Signature=${signature}`,
    )
  })
}

const S3_CREDENTIALS = { accessKey: 'AKIAIOSFODNN7EXAMPLE', secretKey: 'wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY' }
const S3_NOW = new Date('2013-05-24T00:00:00Z')
const S3_EXAMPLE: S3Request = {
  method: 'GET',
  path: '/',
  query: {},
  headers: { host: 'examplebucket.s3.amazonaws.com' },
  payloadHash: EMPTY_PAYLOAD_SHA256,
}

const S3_CASES: Record<string, { request: Partial<S3Request>; target: string; signature: string }> = {
  'a ranged GET': {
    request: { path: '/test.txt', headers: { ...S3_EXAMPLE.headers, range: 'bytes=0-9' } },
    target: '/test.txt',
    signature: 'f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41',
  },
  'a PUT with a hashed payload and a dollar sign in its key': {
    request: {
      method: 'PUT',
      path: `/${encodeS3Key('test$file.text')}`,
      headers: {
        ...S3_EXAMPLE.headers,
        date: 'Fri, 24 May 2013 00:00:00 GMT',
        'x-amz-storage-class': 'REDUCED_REDUNDANCY',
      },
      payloadHash: sha256Hex('Welcome to Amazon S3.'),
    },
    target: '/test%24file.text',
    signature: '98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd',
  },
  'a GET of the lifecycle': {
    request: { query: { lifecycle: '' } },
    target: '/?lifecycle=',
    signature: 'fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543',
  },
  'a listing': {
    request: { query: { prefix: 'J', 'max-keys': '2' } },
    target: '/?max-keys=2&prefix=J',
    signature: '34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7',
  },
}

for (const [name, { request, target, signature }] of Object.entries(S3_CASES)) {
  test(`the signature of ${name} is that of the examples of S3`, () => {
    const signed = signS3Request(S3_CREDENTIALS, 'us-east-1', { ...S3_EXAMPLE, ...request }, S3_NOW)

    assert.equal(signed.target, target)
    assert.equal(signed.headers['x-amz-date'], '20130524T000000Z')
    assert.match(signed.headers.authorization!, new RegExp(`Signature=${signature}$`))
  })
}

test('an unsigned payload is named in the header and covered by the signature', () => {
  const unsigned = signS3Request(S3_CREDENTIALS, 'auto', { ...S3_EXAMPLE, payloadHash: UNSIGNED_PAYLOAD }, S3_NOW)
  const hashed = signS3Request(S3_CREDENTIALS, 'auto', S3_EXAMPLE, S3_NOW)

  assert.equal(unsigned.headers['x-amz-content-sha256'], 'UNSIGNED-PAYLOAD')
  assert.match(unsigned.headers.authorization!, /20130524\/auto\/s3\/aws4_request/)
  assert.notEqual(unsigned.headers.authorization, hashed.headers.authorization)
})

test('the secret key is not part of what is sent', () => {
  const sent = JSON.stringify(signS3Request(S3_CREDENTIALS, 'us-east-1', S3_EXAMPLE, S3_NOW))

  assert.ok(!sent.includes(S3_CREDENTIALS.secretKey))
})

test('keys are encoded byte by byte, without normalising them', () => {
  assert.equal(encodeS3Key("a b+c/é*(1)!'~%2F"), 'a%20b%2Bc/%C3%A9%2A%281%29%21%27~%252F')
  assert.equal(encodeS3Key('a//b/../c/'), 'a//b/../c/')
  assert.equal(encodeS3('a/b'), 'a%2Fb')
  assert.throws(() => encodeS3Key('\ud800'), URIError)
})
