/** An ingress with a fake host behind it, whose sandboxes' ports are those of this machine. */
import { once } from 'node:events'
import { mkdtemp, readFile, rm } from 'node:fs/promises'
import http, { type IncomingMessage, type RequestListener } from 'node:http'
import https from 'node:https'
import net, { type AddressInfo, type Socket } from 'node:net'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { after } from 'node:test'
import { until } from '@warren/kit/testing/until'
import type { Config } from '../config.ts'
import { createHostedApp } from '../testing/with-host.ts'
import type { IngressLimits } from './client-connections.ts'
import { startIngress } from './start.ts'

export type Asked = {
  method?: string
  path?: string
  headers?: Record<string, string>
  body?: Buffer
  secure?: boolean
}
export type Heard = { status: number; headers: http.IncomingHttpHeaders; body: Buffer }
export type Program = http.Server & { port: number; connections: number }

export async function createTestIngress(config: Partial<Config> = {}, limits?: IngressLimits) {
  const folder = await mkdtemp(path.join(tmpdir(), 'warren-ingress-'))
  after(() => rm(folder, { recursive: true, force: true }))
  const hosted = await createHostedApp({
    config: { ingressPort: 0, ingressCaDir: folder, ...config },
    host: { memMib: 10_000_000 },
  })
  const ingress = await startIngress(hosted.deps, limits)
  after(() => ingress.close())
  const ca = await readFile(path.join(folder, 'ca.pem'))
  const owner = await hosted.user({ plan: 'local' })

  function ask(name: string, { method = 'GET', path = '/', headers = {}, body, secure = false }: Asked = {}) {
    const { promise, resolve, reject } = Promise.withResolvers<Heard>()
    const options = { host: '127.0.0.1', port: ingress.port, method, path, headers: { host: name, ...headers } }
    const request = secure
      ? https.request({ ...options, servername: name, ca, agent: false })
      : http.request({ ...options, agent: false })
    request.once('response', (response: IncomingMessage) => {
      response.toArray().then((chunks) => {
        resolve({ status: response.statusCode!, headers: response.headers, body: Buffer.concat(chunks) })
      }, reject)
    })
    request.once('error', reject)
    request.end(body)
    return promise
  }

  return {
    ...hosted,
    folder,
    ingress,
    ca,
    owner,
    ask,
    newSandbox: async (body = {}) => (await hosted.create(owner, { ingress_enabled: true, ...body })).body.data,
    reach: (id: string, status: string) =>
      until(async () => (await hosted.get(`/v1/sandboxes/${id}`, owner.key)).body.data.status === status),
    /** Bytes as they are, and all that comes back until the ingress hangs up. */
    raw: (text: string) => readAll(net.connect(ingress.port, '127.0.0.1'), text),
    metric: async (line: string) => {
      const text = await hosted.deps.metrics.registry.metrics()
      return Number(
        text
          .split('\n')
          .find((one) => one.startsWith(`${line} `))
          ?.slice(line.length + 1) ?? Number.NaN,
      )
    },
  }
}

export async function readAll(socket: Socket, text: string): Promise<string> {
  let heard = ''
  socket.setEncoding('latin1').on('data', (chunk) => {
    heard += chunk
  })
  socket.on('error', () => {}) // `close` follows.
  socket.write(text, 'latin1')
  await new Promise((resolve) => socket.once('close', resolve))
  return heard
}

export const nameOf = (id: string, port: number) => `${id.slice(3).toLowerCase()}-${port}.localhost`

/** A program in the sandbox: ports of this machine are its ports. */
export async function serve(listener: RequestListener): Promise<Program> {
  const server = http.createServer(listener)
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  after(() => {
    server.closeAllConnections()
    server.close()
  })
  const program = Object.assign(server, { port: (server.address() as AddressInfo).port, connections: 0 })
  server.on('connection', () => program.connections++)
  return program
}

/** One that says what it likes. */
export async function serveRaw(listener: (socket: Socket) => void): Promise<{ port: number }> {
  const server = net.createServer(listener).listen(0, '127.0.0.1')
  await once(server, 'listening')
  after(() => server.close())
  return { port: (server.address() as AddressInfo).port }
}
