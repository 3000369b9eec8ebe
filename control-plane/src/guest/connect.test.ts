import assert from 'node:assert/strict'
import { once } from 'node:events'
import { request as httpRequest, type IncomingMessage } from 'node:http'
import { test } from 'node:test'
import { scaleLimit } from '@warren/kit/testing/slowness'
import { until } from '@warren/kit/testing/until'
import { encodeLine, GUEST_CONNECT_FRAME, guestFrame } from '@warren/protocol'
import fc from 'fast-check'
import { listenOn } from '../testing/app.ts'
import { type ProcessLine as Line, outputOf, readProcessLines as read, readUpTo } from '../testing/process-lines.ts'
import { createHostedApp } from '../testing/with-host.ts'

const { app, deps, host, user, create, send } = await createHostedApp({ startWorker: false })
const { port } = await listenOn(app)
const ada = await user({ plan: 'local' })
const { id } = (await create(ada)).body.data
const { guest } = host.vms.get(id)!

const at = (path: string, sandbox = id) => `/v1/sandboxes/${sandbox}/processes${path}`
const sh = async (script: string): Promise<string> =>
  (await send('POST', at(''), ada, { cmd: 'sh', args: ['-c', script] })).body.data.process_id
const write = (process: string, text: string) =>
  send('POST', at(`/${process}/input`), ada, { data_base64: Buffer.from(text).toString('base64') })

test.beforeEach(() => {
  host.hooks = {}
  guest.journalBytes = 1024 * 1024
})

async function open(process: string, query = '') {
  const request = httpRequest({ port, path: at(`/${process}/connect${query}`), headers: ada.headers, agent: false })
  request.on('error', () => {})
  request.end()
  const [response] = (await once(request, 'response')) as [IncomingMessage]
  response.on('error', () => {})
  return response
}

const bytesOf = (lines: Line[], stream?: string) => outputOf(lines, stream).toString()

test('the stream has the output of both streams, then the exit, and its content type', async () => {
  const process = await sh('echo out; echo err >&2; exit 3')

  const response = await open(process)
  const { lines } = await read(response)

  assert.equal(response.headers['content-type'], 'application/x-ndjson')
  assert.equal(response.headers['cache-control'], 'no-store')
  assert.ok(response.headers['x-request-id'])
  assert.deepEqual([bytesOf(lines, 'stdout'), bytesOf(lines, 'stderr')], ['out\n', 'err\n'])
  assert.deepEqual(lines.at(-1), { type: 'exit', exit_code: 3 })
})

test('a death by signal is reported by name, without an exit code', async () => {
  const process = await sh('kill -9 $$')

  const { lines } = await read(await open(process))

  assert.deepEqual(lines, [{ type: 'exit', signal: 'SIGKILL' }])
})

test('many readers get past and new output, each from any sequence number', async () => {
  const process = await sh('while read line; do echo "$line"; done')
  await write(process, 'one\n')
  await until(() => guest.processes.get(process)!.events.length === 1)

  const readers = await Promise.all([open(process), open(process, '?after=0'), open(process, '?after=1')])
  await write(process, 'two\n')
  await until(() => guest.processes.get(process)!.events.length === 2)
  await send('POST', at(`/${process}/stdin/close`), ada)
  const all = await Promise.all(readers.map((response, i) => read(response, i === 2 ? 1 : 0)))

  assert.deepEqual(
    all.map(({ lines }) => bytesOf(lines)),
    ['one\ntwo\n', 'one\ntwo\n', 'two\n'],
  )
  const late = await read(await open(process, '?after=2'), 2)
  assert.deepEqual(late.lines, [{ type: 'exit', exit_code: 0 }])
})

test('a reader that starts after a future sequence number waits', async () => {
  const process = await sh('while read line; do echo "$line"; done')
  const response = await open(process, '?after=2')

  for (const text of ['a', 'b', 'c']) {
    await write(process, `${text}\n`)
    await until(() => guest.processes.get(process)!.view.output.newest_seq === ' abc'.indexOf(text))
  }
  await send('POST', at(`/${process}/stdin/close`), ada)

  assert.equal(bytesOf((await read(response, 2)).lines), 'c\n')
})

test('a reader interrupted at any byte resumes from its last sequence number without loss', async () => {
  const process = await sh('while IFS= read -r line; do echo "$line"; done; exit 7')
  for (let n = 0; n < 5; n++) {
    await write(process, `${'x'.repeat(n * 3)} ${n}\n`)
    await until(() => guest.processes.get(process)!.events.length === n + 1)
  }
  await send('POST', at(`/${process}/stdin/close`), ada)
  const whole = await read(await open(process))
  const expected = bytesOf(whole.lines)
  const length = whole.lines.reduce((sum, line) => sum + encodeLine(line).length, 0)
  assert.equal(whole.lines.length, 6)

  await fc.assert(
    fc.asyncProperty(fc.array(fc.integer({ min: 0, max: length }), { minLength: 1, maxLength: 12 }), async (cuts) => {
      const lines: Line[] = []
      let seq = 0
      for (const cut of cuts) {
        const response = await open(process, `?after=${seq}`)
        const some = await readUpTo(response, cut)
        lines.push(...some)
        seq = some.reduce((last, line) => (line.type === 'data' ? line.seq : last), seq)
        if (lines.at(-1)?.type === 'exit') break
      }
      if (lines.at(-1)?.type !== 'exit') lines.push(...(await read(await open(process, `?after=${seq}`), seq)).lines)

      assert.equal(bytesOf(lines), expected)
      assert.deepEqual(
        lines.filter((line) => line.type !== 'data'),
        [{ type: 'exit', exit_code: 7 }],
      )
    }),
    { numRuns: 25 },
  )
  // And once at every single byte.
  for (let cut = 0; cut <= length; cut++) {
    const first = await readUpTo(await open(process), cut)
    const seq = first.reduce((last, line) => (line.type === 'data' ? line.seq : last), 0)
    const rest = await read(await open(process, `?after=${seq}`), seq)
    assert.equal(bytesOf(first) + bytesOf(rest.lines), expected, `cut at ${cut}`)
  }
})

test('an expired offset is 410 with the oldest available one as text; 0 returns everything retained', async () => {
  guest.journalBytes = 64 * 1024
  const process = await sh('head -c 300000 /dev/zero')
  await send('GET', at(`/${process}/wait`), ada)
  const { oldest_seq: oldest } = guest.processes.get(process)!.view.output
  assert.ok(oldest > 2)

  const { status, body } = await send('GET', at(`/${process}/connect?after=1`), ada)
  assert.equal(status, 410)
  assert.deepEqual(body.data, {
    message: 'output offset expired',
    oldest_available_seq: String(oldest),
    code: 'output_offset_expired',
  })

  const kept = await read(await open(process), oldest - 1)
  assert.equal(kept.lines.at(-1)?.type, 'exit')
})

test('a reader that falls behind gets an error, and blocks neither the process nor other readers', async () => {
  guest.journalBytes = 64 * 1024
  const process = await sh('head -c 30000000 /dev/zero')
  const slow = await open(process)
  const other = read(await open(process))

  const end = await send('GET', at(`/${process}/wait`), ada)
  assert.equal(end.body.data.exit_code, 0)
  assert.equal((await other).lines.at(-1)?.type === 'data', false)

  const { lines } = await read(slow)
  const last = lines.at(-1)!
  assert.ok(last.type === 'error' && last.error === 'output offset expired', JSON.stringify(last))
  assert.ok(Number.isInteger(last.oldest_available_seq))
})

test('a silent stream sends a heartbeat within 5 s', async () => {
  const process = await sh('cat')
  const response = await open(process)
  const startedAt = performance.now()

  const [chunk] = await once(response, 'data')

  assert.equal(String(chunk), '{"type":"heartbeat"}\n')
  assert.ok(performance.now() - startedAt < scaleLimit(5_000))
  response.destroy()
})

test('a lost host, guest or record is reported as an error and never as an exit', async () => {
  const dying: Record<string, () => unknown> = {
    'guest unreachable': async () => {
      await host.stop()
      await host.start()
    },
    'the process was lost: its exit status is unknown': () => {
      for (const process of guest.processes.values()) process.lose()
    },
  }
  for (const [error, kill] of Object.entries(dying)) {
    const process = await sh('echo hello; cat')
    const response = await open(process)
    const lines = read(response)
    await until(() => guest.processes.get(process)!.events.length === 1)

    await kill()

    const all = (await lines).lines
    assert.deepEqual(all.at(-1), { type: 'error', error })
    assert.ok(!all.some((line) => line.type === 'exit'))
    assert.ok(response.complete)
    guest.processes.get(process)!.child.kill('SIGKILL')
  }
})

test('wrong sequence numbers or frames from a guest are an error', async () => {
  const output = (seq: number, text = 'x') => {
    const number = Buffer.alloc(8)
    number.writeBigUInt64BE(BigInt(seq))
    return guestFrame(GUEST_CONNECT_FRAME.stdout, Buffer.concat([number, Buffer.from(text)]))
  }
  const exit = (value: object) => guestFrame(GUEST_CONNECT_FRAME.exit, Buffer.from(JSON.stringify(value)))
  const lies: Uint8Array[][] = [
    [output(1), output(3)],
    [output(1), output(1)],
    [output(1), guestFrame(99, Buffer.from('?'))],
    [output(1), exit({ exit_code: 'zero' })],
    [output(1), exit({})],
    [output(1), output(2, '')],
    [output(1)],
  ]
  for (const frames of lies) {
    host.hooks = {
      guest: (stream) => {
        stream.respond({ ':status': 200 })
        stream.end(Buffer.concat(frames))
      },
    }
    const { lines } = await read(await open('proc_1'))
    assert.deepEqual(lines.at(-1), { type: 'error', error: 'guest unreachable' })
    assert.ok(bytesOf(lines).length <= 1)
  }
})

test('a stream beyond the limit of the host gets 429 with Retry-After', async () => {
  host.hooks = {
    guest: (stream) => {
      stream.respond({ ':status': 429 })
      stream.end(JSON.stringify({ code: 'too_many_streams', message: '512 streams to this guest are open' }))
    },
  }

  const { status, headers, body } = await send('GET', at('/proc_1/connect'), ada)

  assert.deepEqual([status, body.data.code, headers['retry-after']], [429, 'rate_limited', '1'])
})

test('reading output counts as activity; an open connection alone does not', async () => {
  const process = await sh('cat')
  const response = await open(process)
  deps.activity.drain()
  await once(response, 'data') // A heartbeat.
  assert.ok(!deps.activity.drain().has(id))

  await write(process, 'hello')
  deps.activity.drain()
  await once(response, 'data')

  await until(() => deps.activity.drain().has(id))
  response.destroy()
})

test('a reader that disconnects leaves nothing open and does not affect the process', async () => {
  const process = await sh('cat')
  const response = await open(process)

  response.destroy()

  await until(() => guest.processes.get(process)!.listenerCount('change') === 0)
  assert.equal((await send('GET', at(`/${process}`), ada)).body.data.state, 'running')
})
