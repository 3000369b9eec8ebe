/** The S3 proxy as one would write it first: it puts the prefix in front of what the guest sends, signs that and forwards it. */
import { decodeS3, encodeS3Key } from '@warren/kit/s3/encode'
import type { TestS3Server } from '@warren/kit/testing/s3-server'
import type { Call } from './proxy.ts'

/** Returns the body of the answer. */
export async function sendNaively(
  server: TestS3Server,
  { bucket, prefix }: { bucket: string; prefix: string },
  method: string,
  target: string,
  { headers = {}, body = '' }: Call = {},
): Promise<string> {
  const [path = '', queryText = ''] = target.split('?')
  const params = new URLSearchParams(queryText)
  // Rewrites the first value; the server reads the last.
  const first = params.get('prefix')
  const last = params.getAll('prefix').at(-1)
  const query = Object.fromEntries(params)
  if (first !== null || params.has('list-type'))
    query.prefix = last === first ? `${prefix}/${first ?? ''}` : (last ?? '')
  const forwarded = Object.fromEntries(Object.entries(headers).map(([name, value]) => [name, [value].flat()[0] ?? '']))
  const source = forwarded['x-amz-copy-source']
  if (source !== undefined) {
    forwarded['x-amz-copy-source'] = `/${bucket}/${encodeS3Key(`${prefix}${decodeS3(source) ?? source}`)}`
  }
  const key = path === '/' ? '' : `${prefix}${decodeS3(path) ?? path}`
  const reply = await server.request(method, bucket, key, { query, headers: forwarded, body })
  return reply.body.toString()
}
