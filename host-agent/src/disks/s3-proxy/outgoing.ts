/** What is sent to the server for an operation of a guest: written anew from the parsed values and the mount. Pure. */
import { encodeS3Key } from '@warren/kit/s3/encode'
import { renderS3Path } from '@warren/kit/s3/endpoint'
import type { S3Request } from '@warren/kit/s3/sign'
import { toObjectKey } from './key.ts'
import type { Mount } from './mounts.ts'
import type { Operation } from './operation.ts'
import { openPageToken, type PageScope } from './page-token.ts'

/** The host and the hash of the payload are added when it is signed. */
export type Outgoing = Omit<S3Request, 'payloadHash'>

export function buildOutgoing(mount: Mount, operation: Operation): Outgoing {
  const { name, method, key, source } = operation
  const headers: Record<string, string> = { ...operation.headers }
  if (source !== undefined) {
    headers['x-amz-copy-source'] = `/${mount.bucketName}/${encodeS3Key(toObjectKey(mount.prefix, source))}`
  }
  return {
    method,
    path: renderS3Path(mount.bucket, key === '' ? '' : toObjectKey(mount.prefix, key)),
    query: name === 'listObjects' ? buildListQuery(mount, operation.query) : operation.query,
    headers,
  }
}

/** The names are always asked for in encoded form, because XML cannot contain every character. */
function buildListQuery(mount: Mount, given: Readonly<Record<string, string>>): Record<string, string> {
  const { 'continuation-token': sealed, delimiter, 'max-keys': maxKeys } = given
  const scope = pageScope(mount, given)
  return {
    'list-type': '2',
    'encoding-type': 'url',
    prefix: toObjectKey(mount.prefix, given.prefix ?? ''),
    ...(delimiter ? { delimiter } : {}),
    ...(maxKeys === undefined ? {} : { 'max-keys': maxKeys }),
    ...(sealed === undefined ? {} : { 'continuation-token': openPageToken(scope, sealed) }),
  }
}

export const pageScope = ({ pageKey, id }: Mount, query: Readonly<Record<string, string>>): PageScope => ({
  pageKey,
  mountId: id,
  prefix: JSON.stringify([query.prefix ?? '', query.delimiter ?? '']),
})
