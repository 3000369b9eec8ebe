import assert from 'node:assert/strict'
import { test } from 'node:test'
import { findExpectedRegion, parseS3Error } from './error.ts'
import { escapeXml, findText, parseXml } from './xml.ts'

test('the error of a server is its code and message', () => {
  const text =
    '<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>NoSuchBucket</Code><Message>The &quot;x&quot; &lt;bucket&gt; does not exist</Message>' +
    '<BucketName>x</BucketName><RequestId>1</RequestId></Error>'

  assert.deepEqual(parseS3Error(text), { code: 'NoSuchBucket', message: 'The "x" <bucket> does not exist' })
})

test('namespaces, attributes and empty elements are skipped', () => {
  const text = '<s3:Error xmlns:s3="http://s3.example/a>b"><s3:Code>SlowDown</s3:Code><Resource/></s3:Error>'

  assert.deepEqual(parseS3Error(text), { code: 'SlowDown', message: '' })
})

const NOT_ERRORS: Record<string, string> = {
  'nothing at all': '',
  'a page': '<html><body>Bad gateway</body></html>',
  'another document': '<ListBucketResult><Code>x</Code></ListBucketResult>',
  'an error without a code': '<Error><Message>no</Message></Error>',
  'an error with a code that is no word': '<Error><Code>No\r\nSuch</Code></Error>',
  'an error with two codes': '<Error><Code>One</Code><Code>Two</Code></Error>',
  'an error that is cut short': '<Error><Code>NoSuchKey</Code>',
  'tags that do not match': '<Error><Code>NoSuchKey</Error></Code>',
  'a document type':
    '<!DOCTYPE Error [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;">]><Error><Code>A</Code><Message>&b;</Message></Error>',
  'an entity of a document type': '<Error><Code>A</Code><Message>&xxe;</Message></Error>',
  'an entity without an end': '<Error><Code>A</Code><Message>a & b</Message></Error>',
  'too many elements': `<Error><Code>A</Code>${'<a/>'.repeat(200)}</Error>`,
  'too many levels': `<Error><Code>A</Code>${'<a>'.repeat(5_000)}${'</a>'.repeat(5_000)}</Error>`,
  'more than fits': `<Error><Code>A</Code><Message>${'a'.repeat(70_000)}</Message></Error>`,
  'two roots': '<Error><Code>A</Code></Error><Error><Code>B</Code></Error>',
  'bytes that are no text': '\x00\x01\x02<\xff>',
}

for (const [name, text] of Object.entries(NOT_ERRORS)) {
  test(`${name} is no S3 error`, () => {
    assert.equal(parseS3Error(text), undefined)
  })
}

test('what escapeXml wrote is read back', () => {
  const text = `a<b>&amp;"c" 'd' é 😀`

  assert.equal(findText(parseXml(`<a><b>${escapeXml(text)}</b></a>`), 'b'), text)
  assert.equal(findText(parseXml('<a><b>&#x41;&#66;&#xd;</b></a>'), 'b'), 'AB\r')
})

test('the region that a server expects is in a header, or in its error about the signature', () => {
  const malformed = parseS3Error('<Error><Code>AuthorizationHeaderMalformed</Code><Region>garage</Region></Error>')
  const denied = parseS3Error('<Error><Code>AccessDenied</Code><Region>garage</Region></Error>')

  assert.equal(findExpectedRegion({ 'x-amz-bucket-region': 'eu-west-1' }, undefined), 'eu-west-1')
  assert.equal(findExpectedRegion({ 'x-amz-bucket-region': 'a/b' }, undefined), undefined)
  assert.equal(findExpectedRegion({}, malformed), 'garage')
  assert.equal(findExpectedRegion({}, denied), undefined)
})
