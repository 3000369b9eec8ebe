/**
 * The real guest agent instead of the fake one: the static binary, started on this machine, and connected to as a host
 * agent does (protocol/src/guest-api.ts). Its processes are real processes here, so tests must run harmless ones.
 */
import { type ChildProcess, spawn } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { existsSync } from 'node:fs'
import { mkdtemp, rm } from 'node:fs/promises'
import { type ClientHttp2Session, connect, type ServerHttp2Stream } from 'node:http2'
import net from 'node:net'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { after } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { guestHello, guestHelloReply } from '@warren/protocol'

const BINARY = path.resolve(import.meta.dirname, '../../../guest-agent/target/warren/guest-agent')

/** The binary is built by set-up when run as root. */
export const hasRealGuest = existsSync(BINARY)

export type RealGuest = {
  agent: ChildProcess
  /** For `hooks.guest` of a fake host. */
  serve(stream: ServerHttp2Stream, url: URL, method: string): void
}

export async function startRealGuest(): Promise<RealGuest> {
  const folder = await mkdtemp(path.join(tmpdir(), 'warren-guest-'))
  const socket = path.join(folder, 'agent')
  const agent = spawn(BINARY, ['--listen-unix', socket], { stdio: 'ignore' })
  const session = await greet(socket)
  // A login shell must not read the profile of the user who runs the tests.
  await post(session, '/identity', { envs: { HOME: folder } })
  after(async () => {
    session.destroy()
    agent.kill('SIGKILL')
    await rm(folder, { recursive: true, force: true })
  })
  return { agent, serve: (stream, url, method) => relay(session, stream, url, method) }
}

async function greet(socket: string): Promise<ClientHttp2Session> {
  const [data, hello] = [await connectTo(socket), await connectTo(`${socket}.hello`)]
  for (const one of [data, hello]) one.on('error', () => {})
  const nonce = randomBytes(16).toString('hex')
  for (const port of [hello, data]) {
    port.write(guestHello(nonce))
    await skipPast(port, guestHelloReply(nonce))
  }
  hello.resume()
  const session = connect('http://guest', {
    createConnection: () => data,
    settings: { initialWindowSize: 64 * 1024, enablePush: false },
  })
  session.on('error', () => {}) // Every stream gets the error too.
  session.once('close', () => hello.destroy())
  return session
}

/** The socket file exists slightly before the agent listens on it. */
async function connectTo(file: string): Promise<net.Socket> {
  let open: net.Socket | undefined
  await until(async () => {
    const tried = net.connect(file)
    open = await once(tried, 'connect').then(
      () => tried,
      () => undefined,
    )
    return open !== undefined
  })
  return open!
}

async function post(session: ClientHttp2Session, path: string, body: object): Promise<void> {
  const stream = session.request({ ':method': 'POST', ':path': path }, { endStream: false })
  stream.end(JSON.stringify(body))
  const [headers] = await once(stream, 'response')
  if (headers[':status'] !== 200) throw new Error(`${path} of the guest: ${headers[':status']}`)
  stream.resume()
}

async function skipPast(port: net.Socket, line: string): Promise<void> {
  let seen = ''
  while (!seen.endsWith(line)) {
    const byte = port.read(1) as Buffer | null
    if (byte) seen += byte.toString('latin1')
    else if (port.readableEnded || port.destroyed) throw new Error('the guest closed the connection')
    else await once(port, 'readable')
  }
}

function relay(session: ClientHttp2Session, caller: ServerHttp2Stream, url: URL, method: string): void {
  const path = url.pathname.replace(/^.*\/guest\//, '/')
  const guest = session.request({ ':method': method, ':path': `${path}${url.search}` }, { endStream: false })
  const abort = (stream: { destroyed: boolean; destroy(error: Error): unknown }) =>
    stream.destroyed ? undefined : stream.destroy(new Error('aborted'))
  guest.on('error', () => {})
  caller.pipe(guest, { end: false })
  caller.once('end', () => (caller.aborted ? abort(guest) : guest.end()))
  caller.once('close', () => abort(guest))
  guest.once('response', (headers) => {
    if (caller.destroyed) return
    caller.respond({ ':status': headers[':status'] ?? 502 })
    guest.pipe(caller, { end: false })
  })
  guest.once('end', () => (guest.rstCode === 0 ? caller.end() : abort(caller)))
  guest.once('close', () => {
    if (!guest.readableEnded || guest.rstCode !== 0) abort(caller)
    else if (!caller.readableEnded) caller.close(0)
  })
}
