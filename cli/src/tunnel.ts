/**
 * `warren tunnel <sandbox> <port>`: connects stdin and stdout to a port inside a sandbox, as OpenSSH expects of a
 * ProxyCommand. The two directions end separately: after the end of stdin, output may still arrive.
 */
import http from 'node:http'
import https from 'node:https'
import net from 'node:net'
import { text as readText } from 'node:stream/consumers'
import tls from 'node:tls'
import { TUNNEL_UPGRADE } from '@warren/protocol'
import { type Api, getApi, getSandboxId, renderApiError } from './api.ts'
import { SSH_SUFFIX } from './ssh.ts'

/** Keeps NAT and firewall entries of an idle connection alive. */
const KEEPALIVE_MS = 30_000

export async function openTunnel(sandbox: string, port: string): Promise<void> {
  if (!/^\d{1,5}$/.test(port)) throw new Error(`${port} is not a port number`)
  const api = await getApi()
  const id = await getSandboxId(api, sandbox.replace(SSH_SUFFIX, ''))
  const socket = await connect(api, `/v1/sandboxes/${id}/tunnel/${port}`)
  process.stdin.pipe(socket)
  socket.pipe(process.stdout)
  // The reader of our stdout has exited.
  process.stdout.on('error', () => process.exit(1))
  const failed = await new Promise<boolean>((resolve) => {
    socket.once('error', () => resolve(true))
    socket.once('close', () => resolve(false))
  })
  // Wait for the last bytes to be written, then exit explicitly: an open stdin would keep the process running.
  await new Promise<unknown>((resolve) => process.stdout.write('', resolve))
  process.exit(failed ? 1 : 0)
}

async function connect(api: Api, path: string): Promise<net.Socket> {
  const url = new URL(`${api.baseUrl}${path}`)
  const isTls = url.protocol === 'https:'
  const host = url.hostname.replace(/^\[|\]$/g, '') // Brackets around an IPv6 address belong to the URL only.
  const to = { host, port: Number(url.port) || (isTls ? 443 : 80), allowHalfOpen: true }
  // SNI needs a host name; an IP address is not allowed there.
  const servername = net.isIP(host) ? {} : { servername: host }
  const request = (isTls ? https : http).request(url, {
    method: 'POST',
    headers: { 'X-Api-Key': api.key, Connection: 'Upgrade', Upgrade: TUNNEL_UPGRADE },
    // Not an http.Agent, whose sockets close both directions at once.
    createConnection: () => (isTls ? tls.connect({ ...to, ...servername }) : net.connect(to)),
  })
  request.end()
  return new Promise((resolve, reject) => {
    request.once('error', (error) => reject(new Error(`cannot reach ${api.baseUrl}`, { cause: error })))
    request.once('response', (response) => {
      readText(response).then((body) => reject(new Error(renderApiError(response.statusCode ?? 0, body))), reject)
    })
    request.once('upgrade', (_response, duplex, head) => {
      const socket = duplex as net.Socket // The socket that createConnection returned.
      socket.setNoDelay(true).setKeepAlive(true, KEEPALIVE_MS)
      if (head.length > 0) socket.unshift(head)
      resolve(socket)
    })
  })
}
