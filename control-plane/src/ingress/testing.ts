/** An ingress with a fake host behind it. The ports of its sandboxes are ports of this machine's loopback interface. */
import { once } from 'node:events'
import { mkdtemp, readFile, rm } from 'node:fs/promises'
import http, { type IncomingMessage, type RequestListener } from 'node:http'
import https from 'node:https'
import net, { type AddressInfo, type Socket } from 'node:net'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { after } from 'node:test'
import type { ProxyLimits } from '@warren/kit/http-proxy/client-connections'
import { until } from '@warren/kit/testing/until'
import type { Config } from '../config.ts'
import { createHostedApp } from '../testing/with-host.ts'
import { startIngress } from './start.ts'

export type TestRequest = {
  method?: string
  path?: string
  headers?: Record<string, string>
  body?: Buffer
  secure?: boolean
}
export type TestResponse = { status: number; headers: http.IncomingHttpHeaders; body: Buffer }
export type Program = http.Server & { port: number; connections: number }

export async function createTestIngress(config: Partial<Config> = {}, limits?: ProxyLimits) {
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

  function requestTo(
    name: string,
    { method = 'GET', path = '/', headers = {}, body, secure = false }: TestRequest = {},
  ) {
    const { promise, resolve, reject } = Promise.withResolvers<TestResponse>()
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
    requestTo,
    newSandbox: async (body = {}) => (await hosted.create(owner, { ingress_enabled: true, ...body })).body.data,
    waitForStatus: (id: string, status: string) =>
      until(async () => (await hosted.get(`/v1/sandboxes/${id}`, owner.key)).body.data.status === status),
    /** Sends the bytes as they are and returns all that comes back until the ingress closes the connection. */
    sendRaw: (text: string) => readAll(net.connect(ingress.port, '127.0.0.1'), text),
    metric: async (line: string) => {
      const text = await hosted.deps.metrics.registry.metrics()
      return Number(
        text
          .split('\n')
          .find((sample) => sample.startsWith(`${line} `))
          ?.slice(line.length + 1) ?? Number.NaN,
      )
    },
  }
}

export async function readAll(socket: Socket, text: string): Promise<string> {
  let received = ''
  socket.setEncoding('latin1').on('data', (chunk) => {
    received += chunk
  })
  socket.on('error', () => {}) // `close` follows.
  socket.write(text, 'latin1')
  await new Promise((resolve) => socket.once('close', resolve))
  return received
}

export const hostnameOf = (id: string, port: number) => `${id.slice(3).toLowerCase()}-${port}.localhost`

/** An HTTP server that takes the place of a program in a sandbox. */
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

/** The same without HTTP: `listener` reads and writes the raw connection. */
export async function serveRaw(listener: (socket: Socket) => void): Promise<{ port: number }> {
  const server = net.createServer(listener).listen(0, '127.0.0.1')
  await once(server, 'listening')
  after(() => server.close())
  return { port: (server.address() as AddressInfo).port }
}
