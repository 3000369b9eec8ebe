/**
 * Real S3 servers for tests, on loopback and in temporary folders. `npm test` installs them (tools/s3-servers.sh); a test that
 * does not find them fails. Both check signatures. They differ: SeaweedFS is a store of blobs with an index, versitygw maps
 * objects to files, and their errors are not the same.
 */
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, mkdtempSync, readFileSync } from 'node:fs'
import { mkdir, open, rm, writeFile } from 'node:fs/promises'
import http from 'node:http'
import https from 'node:https'
import { type AddressInfo, connect, createServer, type Server } from 'node:net'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { withParentDeathSignal } from '../parent-death-signal.ts'
import { chooseRegion, renderS3Path, resolveS3Bucket } from '../s3/endpoint.ts'
import { parseS3Listing } from '../s3/listing.ts'
import {
  hasSeaweedfsVolumes,
  listSeaweedfsSockets,
  renderSeaweedfsArgs,
  renderSeaweedfsConfig,
  SEAWEEDFS_PORTS,
  s3ServerProgram,
} from '../s3/seaweedfs.ts'
import { type S3Credentials, sha256Hex, signS3Request } from '../s3/sign.ts'
import { addCleanUp, type Scope } from './clean-up.ts'
import { until } from './until.ts'

export const S3_SERVERS = ['seaweedfs', 'versitygw'] as const
export type S3ServerName = (typeof S3_SERVERS)[number]

export type S3ServerOptions = {
  /** Serves https; versitygw only. Paths of PEM files. */
  tls?: { certFile: string; keyFile: string }
  /** Serves buckets as BUCKET.DOMAIN; versitygw only. */
  domain?: string
}

export type S3Reply = { status: number; headers: http.IncomingHttpHeaders; body: Buffer }
export type S3Call = {
  query?: Record<string, string>
  headers?: Record<string, string>
  body?: string | Buffer
  /** Those of the server by default. */
  credentials?: S3Credentials
}

export type TestS3Server = {
  name: S3ServerName
  port: number
  /** http://127.0.0.1:PORT, or the domain. */
  endpoint: string
  /** Access to everything. */
  credentials: S3Credentials
  /** A signed request with path-style addressing. The empty key is the bucket. */
  request(method: string, bucket: string, key: string, call?: S3Call): Promise<S3Reply>
  createBucket(bucket: string): Promise<void>
  /** The keys of a bucket, in order. */
  listKeys(bucket: string): Promise<string[]>
  /** The process and everything in it is gone when this settles; the data and the port remain for `start`. */
  stop(): Promise<void>
  /** With other credentials, the old ones are unknown to the server. */
  start(credentials?: S3Credentials): Promise<void>
}

const STARTS = 3

export async function startS3Server(
  scope: Scope,
  name: S3ServerName,
  options: S3ServerOptions = {},
): Promise<TestS3Server> {
  const program = findProgram(name)
  const folder = mkdtempSync(path.join(tmpdir(), `${name}-`))
  let ports: number[] = []
  /** Also of starts that failed. */
  const usedPorts: number[] = []
  let credentials = { accessKey: 'AKIATESTACCESSKEY', secretKey: 'test/secret+key0123456789abcdefghijklmnop' }
  let child: ChildProcess | undefined
  addCleanUp(scope, async () => {
    if (child !== undefined) await killChild(child)
    await rm(folder, { recursive: true, force: true })
    await Promise.all(listSeaweedfsSockets(usedPorts).map((file) => rm(file, { force: true })))
  })

  const server: TestS3Server = {
    name,
    get port() {
      return ports[0]!
    },
    get endpoint() {
      return `${options.tls === undefined ? 'http' : 'https'}://${options.domain ?? '127.0.0.1'}:${ports[0]}`
    },
    get credentials() {
      return credentials
    },
    request: (method, bucket, key, call = {}) => requestS3(server, method, bucket, key, call),
    async createBucket(bucket) {
      const { status, body } = await server.request('PUT', bucket, '')
      if (status !== 200) throw new Error(`${name} did not create the bucket ${bucket}: ${status} ${body}`)
    },
    listKeys: (bucket) => listKeys(server, bucket),
    async stop() {
      if (child !== undefined) await killChild(child)
      child = undefined
    },
    async start(newCredentials) {
      credentials = newCredentials ?? credentials
      child = await startProcess(server, { program, folder, ports, options })
    },
  }
  for (let attempt = 1; ; attempt++) {
    ports = await findPorts(name === 'seaweedfs' ? SEAWEEDFS_PORTS : 1)
    if (name === 'seaweedfs') usedPorts.push(...ports)
    try {
      await server.start()
      return server
    } catch (error) {
      // Another process took one of the ports in the meantime.
      if (attempt === STARTS) throw error
    }
  }
}

function findProgram(name: S3ServerName): string {
  const program = s3ServerProgram(name)
  if (!existsSync(program)) {
    throw new Error(`the S3 server ${program} is missing: \`npm test\` as root installs it (tools/s3-servers.sh)`)
  }
  return program
}

type Setup = { program: string; folder: string; ports: number[]; options: S3ServerOptions }

async function startProcess(server: TestS3Server, { program, folder, ports, options }: Setup): Promise<ChildProcess> {
  const data = path.join(folder, 'data')
  await mkdir(data, { recursive: true })
  const args =
    server.name === 'seaweedfs'
      ? await seaweedfsArgs(server, folder, data, ports)
      : versitygwArgs(server, data, options)
  const logFile = path.join(folder, 'log')
  const log = await open(logFile, 'a')
  const child = spawn(...withParentDeathSignal('SIGKILL', program, args), {
    cwd: folder,
    stdio: ['ignore', log.fd, log.fd],
    env: { PATH: process.env.PATH, HOME: folder },
  })
  await log.close()
  try {
    await until(async () => {
      if (hasExited(child)) {
        throw new Error(`${server.name} exited:\n${readFileSync(logFile, 'utf8').slice(-2_000)}`)
      }
      return isListening(ports[0]!)
    }, `${server.name} listens`)
    await until(async () => (await requestS3(server, 'GET', '', '', {}).catch(() => undefined))?.status === 200)
    if (server.name === 'seaweedfs') await until(() => hasSeaweedfsVolumes(ports), 'the volume server has registered')
  } catch (error) {
    await killChild(child)
    throw error
  }
  return child
}

async function seaweedfsArgs(
  server: TestS3Server,
  folder: string,
  dataDir: string,
  ports: number[],
): Promise<string[]> {
  const configFile = path.join(folder, 's3.json')
  await writeFile(configFile, renderSeaweedfsConfig(server.credentials))
  return renderSeaweedfsArgs({ dataDir, configFile, ports })
}

function versitygwArgs({ credentials, port }: TestS3Server, data: string, { tls, domain }: S3ServerOptions): string[] {
  const { accessKey, secretKey } = credentials
  return [
    ...['--access', accessKey, '--secret', secretKey, '--port', `127.0.0.1:${port}`, '--quiet', '--keep-alive'],
    ...(tls === undefined ? [] : ['--cert', tls.certFile, '--key', tls.keyFile]),
    ...(domain === undefined ? [] : ['--virtual-domain', `${domain}:${port}`]),
    ...['posix', data],
  ]
}

async function requestS3(
  server: TestS3Server,
  method: string,
  bucket: string,
  key: string,
  { query = {}, headers = {}, body = '', credentials = server.credentials }: S3Call,
): Promise<S3Reply> {
  const resolved = resolveS3Bucket({ endpoint: server.endpoint, bucket: bucket || 'none', usePathStyle: true })
  const { host, endpoint } = resolved
  const path = bucket === '' ? '/' : renderS3Path(resolved, key)
  const region = chooseRegion('auto', endpoint)
  const request = { method, path, query, headers: { host, ...headers }, payloadHash: sha256Hex(body) }
  const { target, headers: signed } = signS3Request(credentials, region, request, new Date())
  const send = endpoint.isSecure ? https.request : http.request
  // The certificate of a test is not the subject here. `path` is sent as it is, unlike that of `fetch`.
  const options = {
    host: '127.0.0.1',
    port: server.port,
    method,
    path: target,
    rejectUnauthorized: false,
    agent: false,
  }
  const outgoing = send({ ...options, headers: { ...signed, 'content-length': Buffer.byteLength(body) } })
  outgoing.end(body)
  const [response] = (await once(outgoing, 'response')) as [http.IncomingMessage]
  const chunks = await Array.fromAsync(response as AsyncIterable<Buffer>)
  return { status: response.statusCode ?? 0, headers: response.headers, body: Buffer.concat(chunks) }
}

async function listKeys(server: TestS3Server, bucket: string): Promise<string[]> {
  const keys: string[] = []
  for (let token = ''; ; ) {
    const query = { 'list-type': '2', 'encoding-type': 'url', ...(token === '' ? {} : { 'continuation-token': token }) }
    const { body } = await server.request('GET', bucket, '', { query })
    const listing = parseS3Listing(body.toString())
    keys.push(...listing.objects.map(({ key }) => key))
    token = listing.nextToken ?? ''
    if (token === '') return keys.sort()
  }
}

/** Not with SIGTERM, after which SeaweedFS waits for ten seconds. What it has acknowledged is in files. */
async function killChild(child: ChildProcess): Promise<void> {
  if (hasExited(child)) return
  const exited = once(child, 'exit')
  child.kill('SIGKILL')
  await exited
}

const hasExited = (child: ChildProcess): boolean => child.exitCode !== null || child.signalCode !== null

async function isListening(port: number): Promise<boolean> {
  const socket = connect(port, '127.0.0.1')
  return new Promise((resolve) => {
    socket.once('connect', () => resolve(true)).once('error', () => resolve(false))
  }).finally(() => socket.destroy()) as Promise<boolean>
}

/** All are open at the same time, so that they differ. */
async function findPorts(count: number): Promise<number[]> {
  const servers: Server[] = Array.from({ length: count }, () => createServer().listen(0, '127.0.0.1'))
  await Promise.all(servers.map((one) => once(one, 'listening')))
  const ports = servers.map((one) => (one.address() as AddressInfo).port)
  await Promise.all(servers.map((one) => new Promise((resolve) => one.close(resolve))))
  return ports
}
