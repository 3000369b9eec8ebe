/**
 * `warren webhooks listen`: receives webhooks on this machine, verifies them and prints them, one line for each.
 *
 * Without `--secret` it creates an endpoint for itself and deletes it when it ends. The API accepts an address of this machine
 * only from the local user; others give the URL of a tunnel or proxy that leads here.
 */
import { once } from 'node:events'
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { onStopSignal } from '@warren/kit/stop'
import type { WebhookCreatedView, WebhookEvent } from '@warren/protocol'
import { type Api, callApi, getApi } from './api.ts'
import { print } from './output.ts'
import { checkSignature } from './verify-webhook.ts'

type Options = { events?: string; secret?: string; port?: string; json?: boolean }
export type Place = { url: string; host: string; port: number }

const BODY_MAX_BYTES = 1024 * 1024

export async function listenForWebhooks(urlOrPort: string, options: Options): Promise<void> {
  const place = parsePlace(urlOrPort, options.port)
  const api = options.secret === undefined ? await getApi() : undefined
  const receiver = await startReceiver(place, { secret: options.secret, json: options.json ?? false, print })
  const endpoint = api && (await createEndpoint(api, receiver.url, options.events))
  if (endpoint) receiver.setSecret(endpoint.secret)
  if (!options.json) print(`Listening for webhooks at ${receiver.url}. Ctrl-C stops it.`)
  const { promise: stopped, resolve } = Promise.withResolvers<void>()
  onStopSignal(() => resolve())
  await stopped
  receiver.close()
  if (api && endpoint) await callApi(api, 'DELETE', `/v1/webhook-endpoints/${endpoint.id}`)
}

const createEndpoint = (api: Api, url: string, events: string | undefined): Promise<WebhookCreatedView> =>
  callApi(api, 'POST', '/v1/webhook-endpoints', {
    url,
    events: (events ?? '').split(',').filter((event) => event !== ''),
  })

/** A port means loopback. A URL of another machine leads here, to `--port` or its own port, on all addresses. */
export function parsePlace(urlOrPort: string, listenPort?: string): Place {
  if (/^\d{1,5}$/.test(urlOrPort)) {
    const port = Number(urlOrPort)
    return { url: `http://127.0.0.1:${port}/`, host: '127.0.0.1', port }
  }
  const url = URL.parse(urlOrPort)
  if (!url || !/^https?:$/.test(url.protocol))
    throw new Error(`${urlOrPort} is neither a port nor an http or https URL`)
  const isLocal = /^(127(\.\d+){3}|localhost)$/.test(url.hostname)
  const port = Number(listenPort ?? (url.port || (url.protocol === 'https:' ? 443 : 80)))
  return { url: url.href, host: isLocal ? '127.0.0.1' : '0.0.0.0', port }
}

export type Receiver = { url: string; setSecret(secret: string): void; close(): void }

export async function startReceiver(
  { url, host, port }: Place,
  options: { secret?: string | undefined; json: boolean; print: (line: string) => void },
): Promise<Receiver> {
  let { secret } = options
  const server: Server = createServer((request, response) => {
    receive(request, response, secret, options).catch(() => response.destroy()) // The sender disconnected.
  })
  server.listen(port, host)
  await once(server, 'listening')
  const found = (server.address() as AddressInfo).port
  return {
    // Port 0 lets the system choose.
    url: port === 0 ? url.replace(':0/', `:${found}/`) : url,
    setSecret(given) {
      secret = given
    },
    close() {
      server.closeAllConnections()
      server.close()
    },
  }
}

async function receive(
  request: IncomingMessage,
  response: ServerResponse,
  secret: string | undefined,
  { json, print }: { json: boolean; print: (line: string) => void },
): Promise<void> {
  const chunks: Buffer[] = []
  let bytes = 0
  for await (const chunk of request as AsyncIterable<Buffer>) {
    bytes += chunk.length
    if (bytes > BODY_MAX_BYTES) return void response.writeHead(413).end()
    chunks.push(chunk)
  }
  const body = Buffer.concat(chunks).toString()
  const { 'x-webhook-timestamp': timestamp, 'x-webhook-signature': signature } = request.headers
  const message = { timestamp: timestamp as string | undefined, signature: signature as string | undefined, body }
  const fault = secret === undefined ? 'the secret is not known yet' : checkSignature(secret, message)
  if (fault !== undefined) {
    print(json ? JSON.stringify({ refused: fault }) : `refused a request: ${fault}`)
    return void response.writeHead(secret === undefined ? 503 : 401).end()
  }
  response.end()
  print(json ? body : renderEvent(JSON.parse(body) as WebhookEvent))
}

const renderEvent = ({ event, occurredAt, data }: WebhookEvent): string =>
  `${occurredAt}  ${event.padEnd(26)}  ${JSON.stringify(data)}`
