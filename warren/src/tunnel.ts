/**
 * `warren tunnel <sandbox> <port>`: a connection to a port inside a sandbox as stdin and stdout, which is what OpenSSH
 * wants of a ProxyCommand. Each direction ends by itself: whoever has sent everything may still receive.
 */
import http from 'node:http'
import https from 'node:https'
import net from 'node:net'
import { text as readText } from 'node:stream/consumers'
import tls from 'node:tls'
import { TUNNEL_UPGRADE } from '@warren/protocol'
import { type Api, getApi, getSandboxId, refusal } from './api.ts'
import { SSH_SUFFIX } from './ssh.ts'

/** A way that is idle for long must not be forgotten by what lies between. */
const KEEPALIVE_MS = 30_000

export async function openTunnel(sandbox: string, port: string): Promise<void> {
  if (!/^\d{1,5}$/.test(port)) throw new Error(`${port} is no port`)
  const api = await getApi()
  const id = await getSandboxId(api, sandbox.replace(SSH_SUFFIX, ''))
  const socket = await connect(api, `/v1/sandboxes/${id}/tunnel/${port}`)
  process.stdin.pipe(socket)
  socket.pipe(process.stdout)
  // Whoever read us has gone: there is nobody to tell.
  process.stdout.on('error', () => process.exit(1))
  const failed = await new Promise<boolean>((resolve) => {
    socket.once('error', () => resolve(true))
    socket.once('close', () => resolve(false))
  })
  // Not before the last bytes are out; an open stdin would keep us for ever.
  await new Promise<unknown>((resolve) => process.stdout.write('', resolve))
  process.exit(failed ? 1 : 0)
}

async function connect(api: Api, path: string): Promise<net.Socket> {
  const url = new URL(`${api.baseUrl}${path}`)
  const isTls = url.protocol === 'https:'
  const host = url.hostname.replace(/^\[|\]$/g, '') // An IPv6 address has brackets in a URL only.
  const to = { host, port: Number(url.port) || (isTls ? 443 : 80), allowHalfOpen: true }
  // The proxy in front may serve several names; an address is none.
  const servername = net.isIP(host) ? {} : { servername: host }
  const request = (isTls ? https : http).request(url, {
    method: 'POST',
    headers: { 'X-Api-Key': api.key, Connection: 'Upgrade', Upgrade: TUNNEL_UPGRADE },
    // An agent's sockets end both directions at once.
    createConnection: () => (isTls ? tls.connect({ ...to, ...servername }) : net.connect(to)),
  })
  request.end()
  return new Promise((resolve, reject) => {
    request.once('error', (error) => reject(new Error(`cannot reach ${api.baseUrl}`, { cause: error })))
    request.once('response', (response) => {
      readText(response).then((body) => reject(new Error(refusal(response.statusCode ?? 0, body))), reject)
    })
    request.once('upgrade', (_response, duplex, head) => {
      const socket = duplex as net.Socket // It is the one made above.
      socket.setNoDelay(true).setKeepAlive(true, KEEPALIVE_MS)
      if (head.length > 0) socket.unshift(head)
      resolve(socket)
    })
  })
}
