/**
 * Checks a bucket before a disk is registered or its credentials change: one signed HEAD request, and if it is refused a GET whose
 * answer has a body that says why. Both together take at most 3 s.
 *
 * The endpoint is named by a user: the connection goes only to addresses that the guard allows (kit/src/outbound/guard.ts),
 * redirects are not followed, and of an answer only status, region and error code are used.
 */
import { once } from 'node:events'
import http from 'node:http'
import https from 'node:https'
import { failure } from '@warren/kit/failure'
import { connectionErrorCode, explainConnectionError } from '@warren/kit/outbound/explain-error'
import { HostNotAllowed } from '@warren/kit/outbound/guard'
import { chooseRegion, renderS3Path, resolveS3Bucket, type S3Bucket } from '@warren/kit/s3/endpoint'
import { findExpectedRegion, parseS3Error, S3_ERROR_MAX_BYTES, type S3Error } from '@warren/kit/s3/error'
import { EMPTY_PAYLOAD_SHA256, signS3Request } from '@warren/kit/s3/sign'
import { VERSION } from '@warren/kit/version'
import { DISK_PROBE_TIMEOUT_MS, DISK_REGION_DEFAULT, type DiskCredentials, type DiskView } from '@warren/protocol'
import type { Deps } from '../deps.ts'
import type { CallerUser } from '../http/caller.ts'
import { mayUseLoopback } from '../users/may-use-loopback.ts'

/** Of one user at the same time, in this process. */
const PROBES_MAX = 4

/** What is wrong, by field. Empty if the bucket can be used. */
type Faults = Record<string, string>
type Answer = { status: number; headers: http.IncomingHttpHeaders; error: S3Error | undefined }
type Ask = (method: 'HEAD' | 'GET', region: string) => Promise<Answer>

const running = new Map<string, number>()

export async function probeBucket(
  deps: Deps,
  user: CallerUser,
  config: DiskView['config'],
  credentials: DiskCredentials,
): Promise<Faults> {
  const others = running.get(user.id) ?? 0
  if (others >= PROBES_MAX) {
    throw failure('rate_limited', 'too many disks are being checked at the same time', { retryAfterSeconds: 1 })
  }
  running.set(user.id, others + 1)
  try {
    return await probe(deps, config, credentials, mayUseLoopback(deps.config, user.plan))
  } finally {
    const left = running.get(user.id)! - 1
    if (left === 0) running.delete(user.id)
    else running.set(user.id, left)
  }
}

async function probe(
  deps: Deps,
  config: DiskView['config'],
  credentials: DiskCredentials,
  allowLoopback: boolean,
): Promise<Faults> {
  const { endpoint, bucket, use_path_style: usePathStyle } = config
  const resolved = resolveS3Bucket({ endpoint, bucket, usePathStyle })
  const deadline = AbortSignal.timeout(DISK_PROBE_TIMEOUT_MS)
  const ask: Ask = (method, region) => request(deps, resolved, credentials, { method, region, allowLoopback }, deadline)
  try {
    if (!deps.diskTargets.isAllowedHost(resolved.hostname, allowLoopback)) throw new HostNotAllowed()
    return await findFaults(ask, config, resolved)
  } catch (error) {
    const isLate = deadline.aborted
    return { 'config.endpoint': isLate ? NO_ANSWER : explainUnreachable(error as Error, resolved) }
  }
}

const NO_ANSWER = `did not answer within ${DISK_PROBE_TIMEOUT_MS / 1000} s`

async function findFaults(ask: Ask, config: DiskView['config'], { endpoint }: S3Bucket): Promise<Faults> {
  const region = chooseRegion(config.region, endpoint)
  const first = await ask('HEAD', region)
  if (isSuccess(first)) return {}
  const refused = await ask('GET', region)
  const expected = findExpectedRegion(first.headers, undefined) ?? findExpectedRegion(refused.headers, refused.error)
  if (expected === undefined || expected === region) return explainRefusal(first.status, refused, config)
  if (config.region !== DISK_REGION_DEFAULT) return wrongRegion(expected)
  const second = await ask('HEAD', expected)
  if (isSuccess(second)) return {}
  if (isRedirect(second)) return wrongRegion(expected)
  return explainRefusal(second.status, await ask('GET', expected), config)
}

const isSuccess = ({ status }: Answer): boolean => status >= 200 && status < 300
const isRedirect = ({ status }: Answer): boolean => status >= 300 && status < 400

const wrongRegion = (region: string): Faults => ({
  'config.region': `the bucket is in region ${region}; give that region, and the endpoint of that region`,
})

/** `status` is that of the HEAD request, `answer` that of the GET. */
function explainRefusal(status: number, answer: Answer, { bucket }: DiskView['config']): Faults {
  const code = answer.error?.code ?? ''
  // First: not every store answers 403.
  const credentialFault = CREDENTIAL_FAULTS.get(code)
  if (credentialFault !== undefined) return { credentials: credentialFault }
  if (status === 404 || code === 'NoSuchBucket') return { 'config.bucket': `bucket ${bucket} was not found` }
  if (code === 'InvalidBucketName') return { 'config.bucket': `${bucket} is not the name of a bucket at this store` }
  if (code === 'RequestTimeTooSkewed') {
    return { 'config.endpoint': 'its clock and that of this machine differ too much; ask the operator' }
  }
  if (status === 401 || status === 403) return { credentials: describeRefusal(bucket, code) }
  if (isRedirect({ ...answer, status })) {
    return {
      'config.endpoint': `redirects to another address (HTTP ${status}); give the endpoint of the bucket's region`,
    }
  }
  return { 'config.endpoint': `answered HTTP ${status}${code === '' ? '' : ` (${code})`} to a request for the bucket` }
}

const UNKNOWN_KEY = 'the store does not know this access key'

/** By the code of the store, which may be any word. */
const CREDENTIAL_FAULTS: ReadonlyMap<string, string> = new Map([
  ['InvalidAccessKeyId', UNKNOWN_KEY],
  // Of versitygw, with status 404.
  ['XAdminUserNotFound', UNKNOWN_KEY],
  ['SignatureDoesNotMatch', 'the store refuses the signature: the secret key does not belong to this access key'],
  ['ExpiredToken', 'the store says that these credentials have expired'],
  ['InvalidToken', 'the store needs a session token with this access key; use a long-term key'],
])

const describeRefusal = (bucket: string, code: string): string =>
  `the store refuses access to bucket ${bucket} with these credentials${code === '' ? '' : ` (${code})`}`

function explainUnreachable(error: Error, { hostname, endpoint }: S3Bucket): string {
  if (error instanceof HostNotAllowed) return 'is or resolves to an address to which disks may not connect'
  const text = `could not be reached: ${explainConnectionError(error, 'store')}`
  const isVirtualHost = hostname !== endpoint.hostname
  if (!isVirtualHost || connectionErrorCode(error) !== 'ENOTFOUND') return text
  return `${text} (${hostname}); set use_path_style if the store does not serve buckets by host name`
}

type Options = { method: 'HEAD' | 'GET'; region: string; allowLoopback: boolean }

async function request(
  deps: Deps,
  bucket: S3Bucket,
  { access_key: accessKey, secret_key: secretKey }: DiskCredentials,
  { method, region, allowLoopback }: Options,
  signal: AbortSignal,
): Promise<Answer> {
  const unsigned = {
    method,
    path: renderS3Path(bucket, ''),
    query: method === 'GET' ? LISTING : {},
    headers: { host: bucket.host },
    payloadHash: EMPTY_PAYLOAD_SHA256,
  }
  const { target, headers } = signS3Request({ accessKey, secretKey }, region, unsigned, deps.now())
  const { isSecure, port } = bucket.endpoint
  const outgoing = (isSecure ? https : http).request({
    method,
    hostname: bucket.hostname,
    port,
    path: target,
    headers: { ...headers, 'user-agent': `Warren-Disks/${VERSION}` },
    lookup: deps.diskTargets.lookup(allowLoopback),
    agent: false,
    signal,
  })
  outgoing.end()
  const [response] = (await once(outgoing, 'response', { signal })) as [http.IncomingMessage]
  try {
    const text = method === 'HEAD' ? '' : await readText(response)
    return { status: response.statusCode ?? 0, headers: response.headers, error: parseS3Error(text) }
  } finally {
    response.destroy()
  }
}

/** One key at most: the error is what matters. */
const LISTING = { 'list-type': '2', 'max-keys': '1' }

async function readText(response: http.IncomingMessage): Promise<string> {
  const chunks: Buffer[] = []
  let bytes = 0
  for await (const chunk of response as AsyncIterable<Buffer>) {
    bytes += chunk.length
    if (bytes > S3_ERROR_MAX_BYTES) return ''
    chunks.push(chunk)
  }
  return Buffer.concat(chunks).toString('utf8')
}
