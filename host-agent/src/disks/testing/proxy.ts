/** An S3 proxy on loopback and guests that talk to it: each loopback address is a sandbox. */
import http from 'node:http'
import { connect } from 'node:net'
import { addCleanUp, type Scope } from '@warren/kit/testing/clean-up'
import type { TestS3Server } from '@warren/kit/testing/s3-server'
import { createMountToken } from '../mount-token.ts'
import { S3Proxy, type S3ProxyDeps } from '../s3-proxy-client.ts'
import { startS3Proxy } from '../s3-proxy-jail.ts'
import { readS3ProxyMachine } from '../s3-proxy-machine.ts'
import type { S3ProxyMount, S3ProxySettings } from '../s3-proxy-protocol.ts'

export const SANDBOX = '127.0.0.2'
export const OTHER_SANDBOX = '127.0.0.3'

export type Reply = { status: number; headers: http.IncomingHttpHeaders; body: Buffer; text: string; code: string }
export type Call = {
  headers?: Record<string, string | string[]>
  body?: string | Buffer
  from?: string
  token?: string
}

/** The mount program of one mount. */
export type Guest = {
  token: string
  mount: S3ProxyMount
  request(method: string, target: string, call?: Call): Promise<Reply>
  /** Sends bytes as they are, and returns what is received for them. */
  sendRaw(text: string | Buffer): Promise<string>
}

/** Of a host agent without a launcher (config.ts). */
export const S3_PROXY_UID = 1_610_612_734

export async function openTestProxy(
  scope: Scope,
  settings: Partial<S3ProxySettings> = {},
  deps: Partial<S3ProxyDeps> = {},
): Promise<{ proxy: S3Proxy; warnings: unknown[] }> {
  const warnings: unknown[] = []
  const log = { warn: (...parts: unknown[]) => void warnings.push(parts) }
  const uid = process.getuid?.() === 0 ? S3_PROXY_UID : undefined
  const start = (given: S3ProxySettings) => startS3Proxy(uid, given)
  const { deadlines, ...rest } = settings
  const proxy = new S3Proxy(
    { log, start, readMachine: readS3ProxyMachine, ...deps },
    { address: '127.0.0.1', port: 0, privateCidrs: [], deadlines: { recoveryMs: 0, ...deadlines }, ...rest },
  )
  addCleanUp(scope, () => proxy.close())
  await proxy.start()
  return { proxy, warnings }
}

let mounts = 0

export function describeMount(
  { endpoint, credentials }: Pick<TestS3Server, 'endpoint' | 'credentials'>,
  given: Partial<S3ProxyMount> = {},
): { token: string; mount: S3ProxyMount } {
  const { token, tokenHash } = createMountToken()
  const mount = {
    id: `mount-${++mounts}`,
    revision: 1,
    sandboxIp: SANDBOX,
    tokenHash,
    endpoint,
    region: 'auto',
    bucket: 'media',
    subPath: '',
    usePathStyle: true,
    readOnly: false,
    allowLoopback: true,
    credentials,
    ...given,
  }
  return { token, mount }
}

export async function addGuest(
  proxy: S3Proxy,
  server: Pick<TestS3Server, 'endpoint' | 'credentials'>,
  given: Partial<S3ProxyMount> = {},
): Promise<Guest> {
  const { token, mount } = describeMount(server, given)
  await proxy.setMounts([mount])
  const from = mount.sandboxIp
  return {
    token,
    mount,
    request: (method, target, call = {}) => requestProxy(proxy.port, method, target, { token, from, ...call }),
    sendRaw: (text) => sendRaw(proxy.port, from, text),
  }
}

/** `target` is sent as it is. Headers with several values are sent several times. */
export async function requestProxy(port: number, method: string, target: string, call: Call): Promise<Reply> {
  const { headers = {}, body = '', from = SANDBOX, token } = call
  const { promise, resolve, reject } = Promise.withResolvers<Reply>()
  const request = http.request({
    host: '127.0.0.1',
    port,
    localAddress: from,
    method,
    path: target,
    agent: false,
    headers: {
      ...(token === undefined ? {} : { authorization: `Bearer ${token}` }),
      ...(Buffer.byteLength(body) > 0 || ['PUT', 'POST'].includes(method)
        ? { 'content-length': String(Buffer.byteLength(body)) }
        : {}),
      ...headers,
    },
  })
  request.on('error', reject)
  request.on('response', async (response) => {
    try {
      const received = Buffer.concat(await Array.fromAsync(response as AsyncIterable<Buffer>))
      const code = String(response.headers['warren-error'] ?? '')
      resolve({
        status: response.statusCode ?? 0,
        headers: response.headers,
        body: received,
        text: received.toString(),
        code,
      })
    } catch (error) {
      reject(error as Error)
    }
  })
  request.end(body)
  return promise
}

export function sendRaw(port: number, from: string, text: string | Buffer): Promise<string> {
  const { promise, resolve } = Promise.withResolvers<string>()
  const socket = connect({ host: '127.0.0.1', port, localAddress: from })
  const chunks: Buffer[] = []
  socket.on('data', (chunk: Buffer) => chunks.push(chunk))
  socket.on('error', () => {})
  socket.on('close', () => resolve(Buffer.concat(chunks).toString('latin1')))
  // A guest that closes its side before it is answered would be taken for gone.
  socket.once('data', () => socket.end())
  socket.write(text)
  return promise
}
