/** Relaying to the real guest agent, whose static binary runs on this machine. */
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync } from 'node:fs'
import { mkdtemp, rm } from 'node:fs/promises'
import http2, { type ClientHttp2Stream, type ServerHttp2Stream } from 'node:http2'
import net from 'node:net'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { after, test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { encodeShellFrame, findRelayedGuestRoute } from '@warren/protocol'
import type { HostError } from '../host-error.ts'
import { openGuestChannel } from './channel.ts'
import { relayToGuest, STAYING_OPEN_MAX } from './relay-to-guest.ts'

const BINARY = path.resolve(import.meta.dirname, '../../../guest-agent/target/warren/guest-agent')
const skip = existsSync(BINARY) ? false : 'the guest agent is not built'

const { NGHTTP2_NO_ERROR } = http2.constants

async function startRelay(): Promise<{ client: http2.ClientHttp2Session; guest: http2.ClientHttp2Session }> {
  const folder = await mkdtemp(path.join(tmpdir(), 'warren-relay-'))
  const agent = spawn(BINARY, ['--listen-unix', path.join(folder, 'agent')], { stdio: 'ignore' })
  const sockets = { agent: path.join(folder, 'agent'), hello: path.join(folder, 'agent.hello') }
  const channel = await openGuestChannel(sockets, AbortSignal.timeout(20_000))
  const server = http2.createServer({ settings: { maxConcurrentStreams: 2 ** 31 - 1 } })
  server.on('stream', (stream: ServerHttp2Stream, headers) => {
    stream.on('error', () => {})
    const path = headers[':path'] ?? ''
    const route = findRelayedGuestRoute(headers[':method'] ?? '', path.split('?')[0]!)
    relayToGuest(channel.session, stream, route!, path).catch((error: HostError) => {
      if (stream.headersSent) return stream.destroy(error)
      stream.respond({ ':status': error.status })
      stream.end(error.code)
    })
  })
  server.listen(path.join(folder, 'host.sock'))
  await once(server, 'listening')
  const client = http2.connect('http://host', { createConnection: () => net.connect(path.join(folder, 'host.sock')) })
  client.on('error', () => {})
  after(async () => {
    client.destroy()
    server.close()
    channel.close()
    agent.kill('SIGKILL')
    await rm(folder, { recursive: true, force: true })
  })
  return { client, guest: channel.session }
}

const { client, guest } = skip ? {} : await startRelay()

function request(method: string, to: string): ClientHttp2Stream {
  const stream = client!.request({ ':method': method, ':path': to }, { endStream: method === 'GET' })
  stream.on('error', () => {})
  return stream
}

async function responseOf(stream: ClientHttp2Stream): Promise<{ status: number; text: string }> {
  const [headers] = await once(stream, 'response')
  const chunks: Buffer[] = []
  for await (const chunk of stream) chunks.push(chunk as Buffer)
  return { status: headers[':status'], text: Buffer.concat(chunks).toString() }
}

async function startProcess(body: object): Promise<string> {
  const stream = request('POST', '/processes')
  stream.end(JSON.stringify(body))
  return JSON.parse((await responseOf(stream)).text).process_id
}

test('a wait outlasts the limit for other responses', { skip }, async () => {
  const process = await startProcess({ cmd: 'sleep', args: ['16'] })

  const { status, text } = await responseOf(request('GET', `/processes/${process}/wait?timeout_ms=30000`))

  assert.deepEqual([status, JSON.parse(text).exit_code], [200, 0])
})

test('a shell that exits closes its stream although the caller still sends', { skip }, async () => {
  const shell = request('POST', '/shell')
  shell.resume()
  shell.write(encodeShellFrame({ type: 'input', data: Buffer.from('exit\n') }))

  await once(shell, 'close')

  assert.deepEqual([shell.rstCode, shell.readableEnded], [NGHTTP2_NO_ERROR, true])
})

test('a connection reset inside the guest resets the stream', { skip }, async () => {
  const server = net.createServer((socket) => {
    socket.on('error', () => {})
    socket.once('data', () => socket.resetAndDestroy())
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  after(() => server.close())
  const tunnel = request('POST', `/tunnel?port=${(server.address() as net.AddressInfo).port}`)
  await once(tunnel, 'response')
  tunnel.resume()

  tunnel.write('x')
  await new Promise((resolve) => tunnel.once('close', resolve))

  assert.notEqual(tunnel.rstCode, NGHTTP2_NO_ERROR)
})

test('readers at their limit leave room for other requests, and a closed one makes room for a new one', {
  skip,
}, async () => {
  const process = await startProcess({ cmd: 'cat' })
  const connect = () => request('GET', `/processes/${process}/connect`)
  const readers = Array.from({ length: STAYING_OPEN_MAX }, connect)
  const heads = await Promise.all(readers.map((reader) => once(reader, 'response')))

  const refused = await responseOf(connect())
  const record = await responseOf(request('GET', `/processes/${process}`))
  readers[0]!.close()
  await until(async () => (await statusOf(connect())) === 200)

  assert.ok(heads.every(([head]) => head[':status'] === 200))
  assert.deepEqual(refused, { status: 429, text: 'too_many_streams' })
  assert.equal(record.status, 200)
  for (const reader of readers) reader.close()
})

test('unsent bytes of aborted streams do not block new streams', { skip }, async () => {
  const stalled = net.createServer((socket) => socket.pause().on('error', () => {}))
  stalled.listen(0, '127.0.0.1')
  await once(stalled, 'listening')
  after(() => stalled.close())
  const { port } = stalled.address() as net.AddressInfo

  // Half a gigabyte in all, above every session memory limit that Node could apply.
  for (let round = 0; round < 32; round++) {
    const tunnel = guest!.request({ ':method': 'POST', ':path': `/tunnel?port=${port}` })
    tunnel.on('error', () => {})
    await once(tunnel, 'response')
    tunnel.write(Buffer.alloc(16 * 1024 * 1024))
    tunnel.destroy(new Error('aborted'))
    await new Promise((resolve) => tunnel.once('close', resolve))
  }

  assert.equal((await responseOf(request('GET', '/processes'))).status, 200)
})

async function statusOf(stream: ClientHttp2Stream): Promise<number> {
  const [headers] = await once(stream, 'response')
  stream.close()
  return headers[':status']
}
