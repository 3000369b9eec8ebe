/** What passes through to a guest, with the real guest agent behind it: the static binary, on this machine. */
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
import { encodeShellFrame } from '@warren/protocol'
import type { HostError } from '../host-error.ts'
import { openGuestChannel } from './channel.ts'
import { passToGuest, STAYING_MAX } from './pass.ts'

const BINARY = path.resolve(import.meta.dirname, '../../../guest-agent/target/warren/guest-agent')
const skip = existsSync(BINARY) ? false : 'the guest agent is not built'

const { NGHTTP2_NO_ERROR } = http2.constants

async function startPassing(): Promise<{ client: http2.ClientHttp2Session; guest: http2.ClientHttp2Session }> {
  const folder = await mkdtemp(path.join(tmpdir(), 'warren-pass-'))
  const agent = spawn(BINARY, ['--listen-unix', path.join(folder, 'agent')], { stdio: 'ignore' })
  const sockets = { agent: path.join(folder, 'agent'), hello: path.join(folder, 'agent.hello') }
  const channel = await openGuestChannel(sockets, AbortSignal.timeout(20_000))
  const server = http2.createServer({ settings: { maxConcurrentStreams: 2 ** 31 - 1 } })
  server.on('stream', (stream: ServerHttp2Stream, headers) => {
    stream.on('error', () => {})
    const request = { ':method': headers[':method'] ?? '', ':path': headers[':path'] ?? '' }
    passToGuest(channel.session, stream, request).catch((error: HostError) => {
      if (stream.headersSent) return stream.destroy(error)
      stream.respond({ ':status': error.status })
      stream.end(error.code)
    })
  })
  server.listen(path.join(folder, 'door'))
  await once(server, 'listening')
  const client = http2.connect('http://host', { createConnection: () => net.connect(path.join(folder, 'door')) })
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

const { client, guest } = skip ? {} : await startPassing()

function ask(method: string, to: string): ClientHttp2Stream {
  const stream = client!.request({ ':method': method, ':path': to }, { endStream: method === 'GET' })
  stream.on('error', () => {})
  return stream
}

async function answerOf(stream: ClientHttp2Stream): Promise<{ status: number; text: string }> {
  const [headers] = await once(stream, 'response')
  const chunks: Buffer[] = []
  for await (const chunk of stream) chunks.push(chunk as Buffer)
  return { status: headers[':status'], text: Buffer.concat(chunks).toString() }
}

async function startProcess(body: object): Promise<string> {
  const stream = ask('POST', '/processes')
  stream.end(JSON.stringify(body))
  return JSON.parse((await answerOf(stream)).text).process_id
}

test('a wait that is longer than any answer may take is not cut', { skip }, async () => {
  const process = await startProcess({ cmd: 'sleep', args: ['16'] })

  const { status, text } = await answerOf(ask('GET', `/processes/${process}/wait?timeout_ms=30000`))

  assert.deepEqual([status, JSON.parse(text).exit_code], [200, 0])
})

test('a shell that has ended closes the way to it, although its caller would go on', { skip }, async () => {
  const shell = ask('POST', '/shell')
  shell.resume()
  shell.write(encodeShellFrame({ type: 'input', data: Buffer.from('exit\n') }))

  await once(shell, 'close')

  assert.deepEqual([shell.rstCode, shell.readableEnded], [NGHTTP2_NO_ERROR, true])
})

test('a reset inside the guest is a reset outside', { skip }, async () => {
  const rude = net.createServer((socket) => {
    socket.on('error', () => {})
    socket.once('data', () => socket.resetAndDestroy())
  })
  rude.listen(0, '127.0.0.1')
  await once(rude, 'listening')
  after(() => rude.close())
  const tunnel = ask('POST', `/tunnel?port=${(rude.address() as net.AddressInfo).port}`)
  await once(tunnel, 'response')
  tunnel.resume()

  tunnel.write('x')
  await new Promise((resolve) => tunnel.once('close', resolve))

  assert.notEqual(tunnel.rstCode, NGHTTP2_NO_ERROR)
})

test('readers that never end leave room for others, and when they hang up for new ones', { skip }, async () => {
  const process = await startProcess({ cmd: 'cat' })
  const connect = () => ask('GET', `/processes/${process}/connect`)
  const readers = Array.from({ length: STAYING_MAX }, connect)
  const heads = await Promise.all(readers.map((reader) => once(reader, 'response')))

  const oneMore = await answerOf(connect())
  const question = await answerOf(ask('GET', `/processes/${process}`))
  readers[0]!.close()
  await until(async () => (await statusOf(connect())) === 200)

  assert.ok(heads.every(([head]) => head[':status'] === 200))
  assert.deepEqual(oneMore, { status: 429, text: 'too_many_streams' })
  assert.equal(question.status, 200)
  for (const reader of readers) reader.close()
})

test('bytes that were never sent are not held against a guest', { skip }, async () => {
  const deaf = net.createServer((socket) => socket.pause().on('error', () => {}))
  deaf.listen(0, '127.0.0.1')
  await once(deaf, 'listening')
  after(() => deaf.close())
  const { port } = deaf.address() as net.AddressInfo

  // Half a gigabyte in all: no Node counts so much and still opens a stream.
  for (let cut = 0; cut < 32; cut++) {
    const tunnel = guest!.request({ ':method': 'POST', ':path': `/tunnel?port=${port}` })
    tunnel.on('error', () => {})
    await once(tunnel, 'response')
    tunnel.write(Buffer.alloc(16 * 1024 * 1024))
    tunnel.destroy(new Error('given up'))
    await new Promise((resolve) => tunnel.once('close', resolve))
  }

  assert.equal((await answerOf(ask('GET', '/processes'))).status, 200)
})

async function statusOf(stream: ClientHttp2Stream): Promise<number> {
  const [headers] = await once(stream, 'response')
  stream.close()
  return headers[':status']
}
