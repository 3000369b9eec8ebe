/** Where the objects of a bucket are: the endpoint, path-style or virtual-host addressing, and the region to sign for. */
import { isIP } from 'node:net'
import { checkDiskEndpoint } from '@warren/protocol'
import { decodeS3, encodeS3, encodeS3Key } from './encode.ts'

export type S3Endpoint = {
  isSecure: boolean
  /** Without the brackets of an IPv6 address. */
  hostname: string
  port: number
  /** Empty, or a path such as `/storage`, percent-encoded and without a slash at its end. */
  basePath: string
}

/** A bucket at an endpoint. The host that is connected to has the bucket's name in virtual-host addressing. */
export type S3Bucket = {
  endpoint: S3Endpoint
  hostname: string
  /** The value of the header Host. */
  host: string
  /** What precedes `/KEY` in a path. */
  basePath: string
}

export type S3BucketConfig = { endpoint: string; bucket: string; usePathStyle: boolean }

/** Throws an error that names the fault. */
export function parseS3Endpoint(text: string): S3Endpoint {
  const fault = checkDiskEndpoint(text)
  const url = URL.parse(text)
  if (fault !== undefined || url === null) throw new Error(`the endpoint ${fault ?? 'is not a URL'}`)
  const isSecure = url.protocol === 'https:'
  const hostname = url.hostname.replace(/^\[(.*)\]$/, '$1')
  const port = url.port === '' ? (isSecure ? 443 : 80) : Number(url.port)
  // What the parser left as it was, such as a quote, must have the form that is signed.
  const segments = url.pathname.split('/').filter((segment) => segment !== '')
  const decoded = segments.map(decodeS3)
  if (decoded.includes(undefined)) throw new Error('the path of the endpoint is not percent-encoded UTF-8')
  const basePath = decoded.map((segment) => `/${encodeS3(segment!)}`).join('')
  return { isSecure, hostname, port, basePath }
}

/**
 * Names that stores accept differ, but none has these characters. A name with a slash would lead into another bucket with
 * path-style addressing, and one with a colon or an at sign to another host with virtual-host addressing.
 */
export function checkBucketName(bucket: string): string | undefined {
  if (!/^[A-Za-z0-9][A-Za-z0-9._-]{1,254}$/.test(bucket)) {
    return 'must have 2 to 255 letters, digits, dots, hyphens and underscores, and begin with a letter or digit'
  }
  return bucket.includes('..') ? 'must not have two dots in a row' : undefined
}

/** Throws an error that names the fault. */
export function resolveS3Bucket({ endpoint: text, bucket, usePathStyle }: S3BucketConfig): S3Bucket {
  const endpoint = parseS3Endpoint(text)
  const fault = checkBucketName(bucket)
  if (fault !== undefined) throw new Error(`the bucket's name ${fault}`)
  if (usePathStyle || !canBeHostName(bucket, endpoint)) {
    const { hostname } = endpoint
    return { endpoint, hostname, host: renderHost(endpoint, hostname), basePath: `${endpoint.basePath}/${bucket}` }
  }
  const hostname = `${bucket}.${endpoint.hostname}`
  return { endpoint, hostname, host: renderHost(endpoint, hostname), basePath: endpoint.basePath }
}

/** The path of the bucket is that of the empty key. */
export function renderS3Path({ basePath }: S3Bucket, key: string): string {
  // With path-style addressing the bucket is `/bucket`, as AWS writes it. Some servers answer `/bucket/` with a redirect.
  return key === '' ? basePath || '/' : `${basePath}/${encodeS3Key(key)}`
}

/**
 * Path-style addressing is used where the other cannot work: addresses have no subdomains, a name with capitals or underscores
 * is no host name, and a certificate for `*.endpoint` does not cover a name with dots.
 */
function canBeHostName(bucket: string, { hostname, isSecure }: S3Endpoint): boolean {
  if (isIP(hostname) !== 0) return false
  return /^[a-z0-9.-]{2,63}(?<![.-])$/.test(bucket) && !(isSecure && bucket.includes('.'))
}

/** Clients leave out the port of the scheme, and the signature covers what is sent. */
function renderHost({ isSecure, port }: S3Endpoint, hostname: string): string {
  const name = hostname.includes(':') ? `[${hostname}]` : hostname
  return port === (isSecure ? 443 : 80) ? name : `${name}:${port}`
}

const DEFAULT_REGION = 'us-east-1'

/**
 * The region to sign for. `auto` is the name of a region only at R2; elsewhere it means the region in the host name of AWS, or
 * the one that most other servers expect. A server that expects another one names it when it refuses (findExpectedRegion).
 */
export function chooseRegion(region: string, { hostname }: S3Endpoint): string {
  if (region !== 'auto' && region !== '') return region
  if (hostname.endsWith('.r2.cloudflarestorage.com')) return 'auto'
  return AWS_HOST.exec(hostname)?.[1] ?? DEFAULT_REGION
}

/** s3.eu-west-1.amazonaws.com, s3.dualstack.eu-west-1.amazonaws.com, s3-eu-west-1.amazonaws.com, …amazonaws.com.cn */
const AWS_HOST = /(?:^|\.)s3(?:-fips)?(?:\.dualstack)?[.-]([a-z]{2}(?:-[a-z]+)+-\d)\.amazonaws\.com(?:\.cn)?$/
