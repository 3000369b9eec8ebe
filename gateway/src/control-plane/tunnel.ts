/**
 * Opens a connection to a port of a sandbox, through a tunnel of the API. The bytes of the connection are those of the port;
 * the program sees a connection from its own machine.
 */
import http from 'node:http'
import https from 'node:https'
import type { Duplex } from 'node:stream'
import { TUNNEL_OPEN_TIMEOUT_MS, TUNNEL_UPGRADE } from '@warren/protocol'
import type { Access } from './client.ts'
import { ControlPlaneError, readError } from './error.ts'

/** A little longer than the API waits for the program. */
const OPEN_LIMIT_MS = TUNNEL_OPEN_TIMEOUT_MS + 5_000
const ERROR_MAX_BYTES = 64 * 1024

/** Nothing listens on the port. The API has one code for this and for a guest that does not answer. */
export const isRefused = (error: unknown): boolean =>
  error instanceof ControlPlaneError && error.status === 502 && error.message.includes('refused')

export async function openTunnel(
  { baseUrl, apiKey }: Access,
  sandboxId: string,
  port: number,
  signal: AbortSignal,
): Promise<Duplex> {
  const what = `connect to port ${port}`
  const { request: send } = baseUrl.startsWith('https:') ? https : http
  const limit = AbortSignal.any([signal, AbortSignal.timeout(OPEN_LIMIT_MS)])
  const request = send(`${baseUrl}/v1/sandboxes/${sandboxId}/tunnel/${port}`, {
    method: 'POST',
    agent: false,
    headers: { 'X-Api-Key': apiKey, Connection: 'Upgrade', Upgrade: TUNNEL_UPGRADE, 'Content-Length': '0' },
  })
  const { promise, resolve, reject } = Promise.withResolvers<Duplex>()
  const abort = () => request.destroy(new Error(`failed to ${what} in time`, { cause: limit.reason }))
  limit.addEventListener('abort', abort, { once: true })
  request.once('upgrade', (_response, socket, head) => {
    socket.setNoDelay(true)
    if (head.length > 0) socket.unshift(head)
    resolve(socket)
  })
  request.once('response', (response) => {
    readText(response).then((text) => reject(readError(what, response.statusCode ?? 0, text)), reject)
  })
  request.on('error', (cause) => reject(new ControlPlaneError(0, `failed to ${what}`, { cause })))
  request.end()
  try {
    if (limit.aborted) abort()
    return await promise
  } finally {
    limit.removeEventListener('abort', abort)
  }
}

async function readText(response: http.IncomingMessage): Promise<string> {
  let text = ''
  for await (const chunk of response.setEncoding('utf8')) if (text.length < ERROR_MAX_BYTES) text += chunk
  return text
}
