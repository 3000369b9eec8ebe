/** Which redirects are followed: those to the same object on the same host. */
import { decodeS3 } from '@warren/kit/s3/encode'
import { renderS3Path, type S3Bucket } from '@warren/kit/s3/endpoint'

/**
 * The path to send the request to, signed anew; undefined if the redirect leads elsewhere. A signature must not be sent to a host
 * that the user has not named, and a redirect must not lead to another object. What remains are servers that are not ready,
 * and those that want a slash after the name of the bucket.
 */
export function followRedirect(bucket: S3Bucket, path: string, location: string | undefined): string | undefined {
  const { endpoint, host } = bucket
  const origin = URL.parse(`${endpoint.isSecure ? 'https' : 'http'}://${host}`)
  const url = location === undefined || origin === null ? null : URL.parse(location, origin)
  if (url === null || url.origin !== origin?.origin || url.username !== '' || url.password !== '') return undefined
  const target = decodeS3(url.pathname)
  const isBucket = path === renderS3Path(bucket, '')
  return [path, ...(isBucket ? [`${path}/`] : [])].find((one) => decodeS3(one) === target)
}
