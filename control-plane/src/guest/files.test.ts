import assert from 'node:assert/strict'
import { createHash, randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { readdirSync, readFileSync, statSync } from 'node:fs'
import { mkdir, writeFile } from 'node:fs/promises'
import { Agent, request as httpRequest, type IncomingMessage } from 'node:http'
import path from 'node:path'
import { Readable } from 'node:stream'
import { test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { FILE_MAX_BYTES } from '@warren/protocol'
import { listenOn } from '../testing/app.ts'
import { insertSandbox } from '../testing/sandboxes.ts'
import { createHostedApp } from '../testing/with-host.ts'

const { app, deps, host, user, create } = await createHostedApp()
const { port, url } = await listenOn(app)
const ada = await user()
const { id } = (await create(ada)).body.data
const { root } = host.vms.get(id)!.guest

test.beforeEach(() => {
  host.hooks = {}
})

const filesUrl = (file: string, sandbox = id) => `/v1/sandboxes/${sandbox}/files?path=${encodeURIComponent(file)}`
const put = async (file: string, body: string | Buffer | null, who = ada, sandbox = id) => {
  const init = { method: 'PUT', headers: who.headers, body, duplex: 'half' } as RequestInit
  const response = await fetch(url + filesUrl(file, sandbox), init)
  return { status: response.status, body: (await response.json()) as Answer }
}
const pull = (file: string, who = ada, sandbox = id) => fetch(url + filesUrl(file, sandbox), { headers: who.headers })
const inGuest = (file: string) => path.join(root, file)
const leftBeside = (folder: string) => readdirSync(inGuest(folder)).filter((name) => name.includes('.part'))
// biome-ignore lint/suspicious/noExplicitAny: tests assert on the response itself.
type Answer = any

test('files are stored unchanged, directories are created, and the response is empty', async () => {
  const bytes = randomBytes(3_000_000)

  const written = await put('/deep/er/file.bin', bytes)
  const read = await pull('/deep/er/file.bin')

  assert.deepEqual(written, { status: 200, body: { status: 'success', data: {} } })
  assert.deepEqual(readFileSync(inGuest('/deep/er/file.bin')), bytes)
  assert.equal(read.headers.get('content-type'), 'application/octet-stream')
  assert.equal(read.headers.get('content-length'), '3000000')
  assert.deepEqual(Buffer.from(await read.arrayBuffer()), bytes)
})

test('an empty body creates an empty file, a body without length works, and names may contain anything', async () => {
  await put('/empty', null)
  const chunks = Array.from({ length: 40 }, (_, i) => Buffer.alloc(10_000, i))
  await put('/chunked', Readable.toWeb(Readable.from(chunks)) as never)
  await put('/a b+c%25/ü&x=1?#', 'named')

  assert.equal(statSync(inGuest('/empty')).size, 0)
  assert.deepEqual(readFileSync(inGuest('/chunked')), Buffer.concat(chunks))
  assert.equal(readFileSync(inGuest('/a b+c%25/ü&x=1?#'), 'utf8'), 'named')
  assert.equal(await (await pull('/a b+c%25/ü&x=1?#')).text(), 'named')
  assert.equal((await pull('/empty')).headers.get('content-length'), '0')
})

test('a JSON body is stored unchanged, whatever its content type', async () => {
  const init = { method: 'PUT', headers: { ...ada.headers, 'content-type': 'application/json' }, body: '{"broken":' }
  const response = await fetch(url + filesUrl('/x.json'), init)

  assert.equal(response.status, 200)
  assert.equal(readFileSync(inGuest('/x.json'), 'utf8'), '{"broken":')
})

test('an invalid path is 400 with its field', async () => {
  await mkdir(inGuest('/folder'), { recursive: true })
  const bad = ['relative', '', '/a/../b', '/..', '/nul\0', `/${'x'.repeat(4096)}`]

  for (const file of bad) {
    for (const answer of [await put(file, 'x'), await pull(file).then(toAnswer)]) {
      assert.deepEqual([answer.status, answer.body.data.code], [400, 'validation_failed'], file)
      assert.ok('path' in answer.body.data, JSON.stringify(answer.body))
    }
  }
  for (const answer of [await put('/folder', 'x'), await pull('/folder').then(toAnswer)]) {
    assert.deepEqual([answer.status, answer.body.data.path], [400, 'is a directory'])
  }
  const missing = await fetch(`${url}/v1/sandboxes/${id}/files`, { headers: ada.headers }).then(toAnswer)
  assert.deepEqual([missing.status, missing.body.data.path], [400, 'is required'])
})

test('a missing file is 404 with its code, and no header of the guest is forwarded', async () => {
  await writeFile(inGuest('/there'), 'x')

  assert.deepEqual((await pull('/missing').then(toAnswer)).body, {
    status: 'fail',
    data: { message: 'file not found', code: 'file_not_found' },
  })
  assert.equal((await pull('/there')).headers.get('x-from-guest'), null)
})

test('the sandbox must be running and belong to the caller', async () => {
  const paused = await insertSandbox(deps.db, ada.id, 'paused')
  const bob = await user()

  for (const answer of [await put('/x', 'x', ada, paused.id), await pull('/x', ada, paused.id).then(toAnswer)]) {
    assert.deepEqual(
      [answer.status, answer.body.data],
      [404, { message: 'sandbox is paused, expected running', code: 'sandbox_not_running' }],
    )
  }
  assert.equal((await put('/x', 'x', bob)).body.data.message, 'sandbox not found')
  assert.equal((await pull('/x', bob)).status, 404)
})

test('an interrupted upload leaves nothing behind and the old file unchanged', async () => {
  await put('/cut/file', 'before')
  for (const headers of [{ 'content-length': 10_000_000 }, {}]) {
    const request = httpRequest({
      port,
      method: 'PUT',
      path: filesUrl('/cut/file'),
      headers: { ...ada.headers, ...headers },
    })
    request.on('error', () => {})
    request.write(Buffer.alloc(500_000))
    await until(() => leftBeside('/cut').length === 1)

    request.destroy()

    await until(() => leftBeside('/cut').length === 0)
    assert.equal(readFileSync(inGuest('/cut/file'), 'utf8'), 'before')
  }
})

test('an upload that is idle when it is interrupted is not stored', async () => {
  for (let i = 0; i < 20; i++) {
    const request = httpRequest({ port, method: 'PUT', path: filesUrl('/still'), headers: ada.headers })
    request.on('error', () => {})
    request.write('half')
    await until(() => readdirSync(root).some((name) => name.startsWith('still.part')))

    request.destroy()

    await until(() => !readdirSync(root).some((name) => name.startsWith('still.part')))
    assert.ok(!readdirSync(root).includes('still'))
  }
})

test('an announced length over 10 GiB is rejected immediately', async () => {
  const request = httpRequest({
    port,
    method: 'PUT',
    path: filesUrl('/huge'),
    headers: { ...ada.headers, 'content-length': FILE_MAX_BYTES + 1 },
  })
  request.on('error', () => {})
  request.flushHeaders()
  const [response] = (await once(request, 'response')) as [IncomingMessage]
  const body = JSON.parse(Buffer.concat(await response.toArray()).toString())
  request.destroy()

  assert.deepEqual([response.statusCode, body.data.body], [400, `is larger than ${FILE_MAX_BYTES} bytes`])
})

test('an error of the guest during an upload reaches the caller', async () => {
  host.hooks = {
    guest: (stream) => {
      stream.once('data', () => {
        stream.respond({ ':status': 507 })
        stream.end(JSON.stringify({ code: 'no_space', message: 'disk full' }))
      })
    },
  }
  const { status, body } = await put('/full', Buffer.alloc(2_000_000))

  assert.equal(status, 400)
  assert.match(body.data.body, /no space left/)
})

test('after an upload that failed early, the next request on the connection is served', async () => {
  const agent = new Agent({ keepAlive: true, maxSockets: 1 })
  host.hooks = {
    guest: (stream) => {
      stream.once('data', () => {
        stream.respond({ ':status': 507 })
        stream.end(JSON.stringify({ code: 'no_space', message: 'disk full' }))
      })
    },
  }
  const statuses: (number | undefined)[] = []
  for (let i = 0; i < 10; i++) {
    const request = httpRequest({ agent, port, method: 'PUT', path: filesUrl('/full'), headers: ada.headers })
    request.end(Buffer.alloc(400_000))
    const [response] = (await once(request, 'response')) as [IncomingMessage]
    response.resume()
    statuses.push(response.statusCode)
  }
  agent.destroy()

  assert.deepEqual(statuses, Array(10).fill(400))
})

test('a lost guest is 502, and so is one that reports a wrong size', async () => {
  host.hooks = { guest: (stream) => stream.close() }
  const unreachable = [(await put('/x', 'x')).status, (await pull('/x')).status]
  host.hooks = {
    guest: (stream) => {
      stream.resume().once('end', () => {
        stream.respond({ ':status': 200 })
        stream.end('{"bytes":5}')
      })
    },
  }
  const wrong = await put('/x', 'x')

  assert.deepEqual(unreachable, [502, 502])
  assert.deepEqual([wrong.status, wrong.body.message], [502, 'guest unreachable'])
})

test('a download whose length differs from the announced one is reset', async () => {
  for (const [announced, sent] of [
    [10, 5],
    [5, 10],
  ]) {
    host.hooks = {
      guest: (stream) => {
        stream.respond({ ':status': 200, 'content-length': announced })
        stream.end(Buffer.alloc(sent!))
      },
    }
    const download = pull('/lie').then(async (response) => (response.ok ? response.arrayBuffer() : response.status))
    // Before the head is sent it is an error response, after that only a reset is possible.
    assert.equal(await download.catch(() => 502), 502)
  }
})

test('a file without a length, such as one of /proc, is sent in chunks', async () => {
  host.hooks = {
    guest: (stream) => {
      stream.respond({ ':status': 200 })
      stream.end('made up')
    },
  }
  const response = await pull('/proc/uptime')

  assert.deepEqual([response.headers.get('content-length'), await response.text()], [null, 'made up'])
})

test('a reader that disconnects stops the guest from sending', async () => {
  let closed = false
  host.hooks = {
    guest: (stream) => {
      stream.respond({ ':status': 200, 'content-length': 1e9 })
      Readable.from(endless()).pipe(stream)
      stream.once('close', () => {
        closed = true
      })
    },
  }
  const request = httpRequest({ port, path: filesUrl('/endless'), headers: ada.headers })
  request.end()
  const [response] = (await once(request, 'response')) as [IncomingMessage]
  response.on('error', () => {})
  await once(response, 'data')

  request.destroy()

  await until(() => closed)
})

test('256 MiB are uploaded and downloaded with constant memory and the right checksum', async () => {
  const piece = randomBytes(1024 * 1024)
  const hash = createHash('sha256')
  async function* pieces() {
    for (let i = 0; i < 256; i++) {
      hash.update(piece)
      yield piece
    }
  }
  const before = process.memoryUsage().rss
  let peak = 0
  const watch = setInterval(() => {
    peak = Math.max(peak, process.memoryUsage().rss - before)
  }, 20)

  const { status } = await put('/large', Readable.toWeb(Readable.from(pieces())) as never)
  const response = await pull('/large')
  const read = createHash('sha256')
  for await (const chunk of response.body!) read.update(chunk)
  clearInterval(watch)

  assert.equal(status, 200)
  assert.equal(read.digest('hex'), hash.digest('hex'))
  // Client, server and fake host share this process.
  assert.ok(peak < 150 * 1024 * 1024, `${Math.round(peak / 1024 / 1024)} MiB`)
})

async function toAnswer(response: Response): Promise<{ status: number; body: Answer }> {
  return { status: response.status, body: await response.json() }
}

function* endless(): Generator<Buffer> {
  for (;;) yield Buffer.alloc(16_384)
}
