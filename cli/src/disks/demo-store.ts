/** An S3 store on this machine for `warren disks demo`: SeaweedFS in a temporary folder, with random keys. */
import { type ChildProcess, spawn } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises'
import { type AddressInfo, createServer } from 'node:net'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { withParentDeathSignal } from '@warren/kit/parent-death-signal'
import { chooseRegion, renderS3Path, resolveS3Bucket } from '@warren/kit/s3/endpoint'
import {
  hasSeaweedfsVolumes,
  listSeaweedfsSockets,
  renderSeaweedfsArgs,
  renderSeaweedfsConfig,
  SEAWEEDFS_PORTS,
  s3ServerProgram,
} from '@warren/kit/s3/seaweedfs'
import { sha256Hex, signS3Request } from '@warren/kit/s3/sign'
import { ROOT } from '../config.ts'

const START_LIMIT_MS = 60_000
const POLL_MS = 200

export type DemoStore = {
  endpoint: string
  credentials: { accessKey: string; secretKey: string }
  /** A signed request. The empty key is the bucket. */
  request(method: string, bucket: string, key: string, body?: string): Promise<string>
  close(): Promise<void>
}

export async function startDemoStore(): Promise<DemoStore> {
  await installServer()
  const folder = await mkdtemp(path.join(tmpdir(), 'warren-disks-demo-'))
  const ports = await findPorts(SEAWEEDFS_PORTS)
  const credentials = { accessKey: randomBytes(10).toString('hex'), secretKey: randomBytes(20).toString('hex') }
  const [dataDir, configFile] = [path.join(folder, 'data'), path.join(folder, 's3.json')]
  await mkdir(dataDir)
  await writeFile(configFile, renderSeaweedfsConfig(credentials), { mode: 0o600 })
  const args = renderSeaweedfsArgs({ dataDir, configFile, ports })
  const child = spawn(...withParentDeathSignal('SIGKILL', s3ServerProgram('seaweedfs'), args), {
    cwd: folder,
    stdio: 'ignore',
    env: { PATH: process.env.PATH, HOME: folder },
  })
  const store: DemoStore = {
    endpoint: `http://127.0.0.1:${ports[0]}`,
    credentials,
    request: (method, bucket, key, body = '') => requestStore(store, method, bucket, key, body),
    async close() {
      if (!hasExited(child)) {
        const exited = once(child, 'exit')
        child.kill('SIGKILL')
        await exited
      }
      await Promise.all(
        [folder, ...listSeaweedfsSockets(ports)].map((file) => rm(file, { recursive: true, force: true })),
      )
    },
  }
  try {
    await untilReady(child, ports, store)
    return store
  } catch (error) {
    await store.close()
    throw error
  }
}

async function installServer(): Promise<void> {
  const installing = spawn('sh', [path.join(ROOT, 'tools/demo-s3-server.sh')], {
    stdio: ['ignore', 'inherit', 'inherit'],
  })
  const [code] = (await once(installing, 'exit')) as [number | null]
  if (code !== 0) throw new Error('failed to install the S3 server of the demo; see the output above')
}

async function untilReady(child: ChildProcess, ports: readonly number[], store: DemoStore): Promise<void> {
  for (const deadline = Date.now() + START_LIMIT_MS; Date.now() < deadline; await delay(POLL_MS)) {
    if (hasExited(child)) throw new Error('the S3 server of the demo exited; is a port of it taken?')
    const isReady = await hasSeaweedfsVolumes(ports).catch(() => false)
    const answers = isReady && (await store.request('GET', '', '').catch(() => undefined))
    if (typeof answers === 'string') return
  }
  throw new Error(`the S3 server of the demo was not ready within ${START_LIMIT_MS / 1000} s`)
}

async function requestStore(
  { endpoint, credentials }: DemoStore,
  method: string,
  bucket: string,
  key: string,
  body: string,
): Promise<string> {
  const resolved = resolveS3Bucket({ endpoint, bucket: bucket || 'none', usePathStyle: true })
  const to = bucket === '' ? '/' : renderS3Path(resolved, key)
  const request = { method, path: to, query: {}, headers: { host: resolved.host }, payloadHash: sha256Hex(body) }
  const region = chooseRegion('auto', resolved.endpoint)
  const { target, headers } = signS3Request(credentials, region, request, new Date())
  const response = await fetch(`${endpoint}${target}`, { method, headers, ...(method === 'PUT' ? { body } : {}) })
  const text = await response.text()
  if (!response.ok)
    throw new Error(`the S3 server of the demo answered ${method} ${to} with ${response.status}: ${text}`)
  return text
}

const hasExited = (child: ChildProcess): boolean => child.exitCode !== null || child.signalCode !== null

/** All are open at the same time, so that they differ. */
async function findPorts(count: number): Promise<number[]> {
  const servers = Array.from({ length: count }, () => createServer().listen(0, '127.0.0.1'))
  await Promise.all(servers.map((one) => once(one, 'listening')))
  const ports = servers.map((one) => (one.address() as AddressInfo).port)
  await Promise.all(servers.map((one) => new Promise((resolve) => one.close(resolve))))
  return ports
}
