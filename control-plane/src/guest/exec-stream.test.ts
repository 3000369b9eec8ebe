import assert from 'node:assert/strict'
import { once } from 'node:events'
import { request as httpRequest, type IncomingMessage } from 'node:http'
import { test } from 'node:test'
import { passTime } from '@warren/kit/testing/pass-time'
import { until } from '@warren/kit/testing/until'
import { untilStable } from '@warren/kit/testing/until-stable'
import { EXEC_CHUNK_MAX_BYTES } from '@warren/protocol'
import { listenOn } from '../testing/app.ts'
import { createHostedApp } from '../testing/with-host.ts'

const { app, host, user, create } = await createHostedApp()
const { port } = await listenOn(app)
const ada = await user()
const { id } = (await create(ada)).body.data
const commands = host.vms.get(id)!.guest.commands

test.beforeEach(() => {
  host.hooks = {}
})

/** Opens a streamed response over a real connection. */
async function open(body: object, path = `/v1/sandboxes/${id}/exec?stream=true`) {
  const request = httpRequest({ port, method: 'POST', path, headers: ada.headers })
  request.on('error', () => {})
  request.end(JSON.stringify(body))
  const [response] = (await once(request, 'response')) as [IncomingMessage]
  response.on('error', () => {})
  return { request, response }
}

async function stream(body: object) {
  const { response } = await open(body)
  const text = Buffer.concat(await response.toArray()).toString('utf8')
  assert.ok(text.endsWith('\n'))
  const lines = text.slice(0, -1).split('\n')
  return { response, lines, frames: lines.map((line) => JSON.parse(line)) }
}

test('a stream has one field per line, the exit code last, and its headers', async () => {
  const { response, lines, frames } = await stream({ cmd: 'sh', args: ['-c', 'echo a; echo b >&2; exit 5'] })

  assert.equal(response.headers['content-type'], 'application/x-ndjson')
  assert.ok(response.headers['x-request-id'])
  for (const frame of frames) assert.equal(Object.keys(frame).length, 1)
  for (const line of lines) assert.equal(line, JSON.stringify(JSON.parse(line)))
  assert.deepEqual(frames.at(-1), { exit_code: 5 })
  assert.equal(frames.map((frame) => frame.stdout ?? '').join(''), 'a\n')
  assert.equal(frames.map((frame) => frame.stderr ?? '').join(''), 'b\n')
})

test('streaming can be requested in the body, and stream=false in the query means no stream', async () => {
  const { response } = await open({ cmd: 'true', stream: true }, `/v1/sandboxes/${id}/exec`)
  const buffered = await open({ cmd: 'true' }, `/v1/sandboxes/${id}/exec?stream=false`)

  assert.equal(response.headers['content-type'], 'application/x-ndjson')
  assert.match(String(buffered.response.headers['content-type']), /^application\/json/)
  response.resume()
  buffered.response.resume()
})

test('a command that could not start is an error line and its exit code', async () => {
  const { frames } = await stream({ cmd: 'no-such-program' })

  assert.deepEqual(Object.keys(frames[0]), ['error'])
  assert.deepEqual(frames.slice(1), [{ exit_code: 127 }])
})

test('no line splits a character or exceeds 64 KiB, and a stream has no size limit', async () => {
  const { frames } = await stream({ cmd: 'sh', args: ['-c', "printf '%0400000d' 0 | sed 's/0/😀/g'"] })

  const chunks = frames.slice(0, -1).map((frame) => frame.stdout as string)
  assert.equal(chunks.join(''), '😀'.repeat(400_000))
  for (const chunk of chunks) {
    assert.ok(chunk.isWellFormed())
    assert.ok(Buffer.byteLength(chunk) <= EXEC_CHUNK_MAX_BYTES)
  }
})

test('a character whose bytes arrive separately stays one character', async () => {
  const script = "printf '\\360\\237'; sleep 0.2; printf '\\230\\200'; sleep 0.2; printf '\\342\\202'"
  const { frames } = await stream({ cmd: 'sh', args: ['-c', script] })

  assert.equal(frames.map((frame) => frame.stdout ?? '').join(''), '😀�')
})

test('the head is sent before any output, output as it arrives, and a heartbeat every 5 s', async () => {
  const { request, response } = await open({ cmd: 'sh', args: ['-c', 'sleep 0.3; echo first; sleep 11'] })
  const startedAt = Date.now()
  const seen: { line: string; at: number }[] = []
  response.setEncoding('utf8').on('data', (text: string) => {
    for (const line of text.trimEnd().split('\n')) seen.push({ line, at: Date.now() - startedAt })
  })

  await until(() => seen.some(({ line }) => line.includes('exit_code')), 'the exit event has arrived', 15_000)
  request.destroy()

  assert.equal(seen[0]!.line, '{"stdout":"first\\n"}')
  assert.ok(seen[0]!.at < 2_000)
  const beats = seen.filter(({ line }) => line === '{"hb":true}').map(({ at }) => at)
  assert.equal(beats.length, 2)
  for (const [i, at] of beats.entries()) assert.ok(Math.abs(at - 5_000 * (i + 1)) < 1_500, beats.join())
})

test('a reader that does not read blocks the command instead of filling memory', async () => {
  const { request, response } = await open({ cmd: 'sh', args: ['-c', 'head -c 300000000 /dev/zero | tr "\\0" x'] })
  response.pause()
  await untilStable(() => response.socket.bytesRead, 'nothing more arrives')
  const before = process.memoryUsage().rss
  await passTime(500, 'a server that did not block the command would take hundreds of megabytes')

  assert.equal(commands.size, 1, 'the command must still be waiting to write')
  assert.ok(process.memoryUsage().rss - before < 50 * 1024 * 1024)
  request.destroy()
  await until(() => commands.size === 0)
})

test('a stream whose guest is lost is reset, without an invented exit code', async () => {
  const { response } = await open({ cmd: 'sh', args: ['-c', 'echo begun; sleep 30'] })
  const chunks: string[] = []
  response.setEncoding('utf8').on('data', (text) => chunks.push(text))
  await until(() => chunks.join('').includes('begun'))

  await host.stop()
  await until(() => response.destroyed || response.readableEnded)
  await host.start()

  assert.equal(response.complete, false)
  assert.ok(!chunks.join('').includes('exit_code'))
  await until(() => commands.size === 0)
})

test('failures before the start of a stream are ordinary error responses', async () => {
  host.hooks = { guest: (stream) => stream.close() }
  const { response } = await open({ cmd: 'true' })

  assert.equal(response.statusCode, 502)
  assert.match(String(response.headers['content-type']), /^application\/json/)
  response.resume()
})
