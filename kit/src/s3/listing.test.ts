import assert from 'node:assert/strict'
import { test } from 'node:test'
import { parseS3Listing } from './listing.ts'

const CONTENTS = '<LastModified>2026-11-17T12:34:52Z</LastModified><ETag>&#34;9dd4&#34;</ETag><Size>7</Size>'

test('a listing has objects, common prefixes and the token of the next page', () => {
  const listing = parseS3Listing(
    '<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>media</Name>' +
      `<IsTruncated>true</IsTruncated><NextContinuationToken>t/1=</NextContinuationToken>` +
      `<Contents><Key>a &amp; b</Key>${CONTENTS}</Contents><CommonPrefixes><Prefix>c/</Prefix></CommonPrefixes></ListBucketResult>`,
  )

  assert.deepEqual(listing, {
    objects: [{ key: 'a & b', size: 7, etag: '"9dd4"', lastModified: '2026-11-17T12:34:52Z' }],
    commonPrefixes: ['c/'],
    nextToken: 't/1=',
  })
})

test('names are decoded if the server says that it has encoded them', () => {
  const listingOf = (encodingType: string) =>
    parseS3Listing(
      `<ListBucketResult>${encodingType}<Contents><Key>c%2B%2B%20x/a+b%26%C3%A9</Key>${CONTENTS}</Contents></ListBucketResult>`,
    ).objects[0]?.key

  assert.equal(listingOf('<EncodingType>url</EncodingType>'), 'c++ x/a b&é')
  assert.equal(listingOf('<EncodingType></EncodingType>'), 'c%2B%2B%20x/a+b%26%C3%A9')
  assert.equal(listingOf(''), 'c%2B%2B%20x/a+b%26%C3%A9')
})

const INVALID: Record<string, string> = {
  'another document': '<Error><Code>NoSuchBucket</Code></Error>',
  'an object without a size': '<ListBucketResult><Contents><Key>a</Key></Contents></ListBucketResult>',
  'an object with two keys': `<ListBucketResult><Contents><Key>a</Key><Key>b</Key>${CONTENTS}</Contents></ListBucketResult>`,
  'no token for the next page': '<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>',
  'a name that is not UTF-8': `<ListBucketResult><EncodingType>url</EncodingType><Contents><Key>%ff</Key>${CONTENTS}</Contents></ListBucketResult>`,
  'more than a page': `<ListBucketResult>${`<Contents><Key>a</Key>${CONTENTS}</Contents>`.repeat(5_000)}</ListBucketResult>`,
}

for (const [name, text] of Object.entries(INVALID)) {
  test(`a listing with ${name} is refused`, () => {
    assert.throws(() => parseS3Listing(text), Error)
  })
}
