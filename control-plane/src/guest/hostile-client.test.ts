/**
 * Clients that write, read and disconnect at the same time, with the real guest agent: each gets a correct response.
 */
import assert from 'node:assert/strict'
import type { IncomingMessage } from 'node:http'
import { test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { listenOn } from '../testing/app.ts'
import { openStream, outputOf, readProcessLines } from '../testing/process-lines.ts'
import { hasRealGuest, startRealGuest } from '../testing/real-guest.ts'
import { createHostedApp } from '../testing/with-host.ts'

const skip = hasRealGuest ? false : 'the guest agent is not built'
const { app, host, user, create, send } = await createHostedApp({ startWorker: false })
const { port } = await listenOn(app)
const ada = await user({ plan: 'local' })
const { id } = (await create(ada)).body.data
const guest = hasRealGuest ? await startRealGuest() : undefined
if (guest) host.hooks = { guest: guest.serve }

const at = (path: string) => `/v1/sandboxes/${id}/processes${path}`
const start = async (body: object): Promise<string> => (await send('POST', at(''), ada, body)).body.data.process_id
const get = async (process: string) => (await send('GET', at(`/${process}`), ada)).body.data
const write = (process: string, bytes: string | Buffer) =>
  send('POST', at(`/${process}/input`), ada, { data_base64: Buffer.from(bytes).toString('base64') })
const closeStdin = (process: string) => send('POST', at(`/${process}/stdin/close`), ada)

const open = (process: string, headers: Record<string, string> = ada.headers) =>
  openStream(port, at(`/${process}/connect`), headers)

test('with many writers and one that closes stdin, exactly the accepted input reaches the program in order', {
  skip,
}, async () => {
  for (let round = 0; round < 5; round++) {
    const process = await start({ cmd: 'cat' })
    const texts = Array.from({ length: 40 }, (_, n) => `${n} `.repeat(1 + (n % 7) * 500))
    const writes = texts.map((text) => write(process, text))
    const closing = closeStdin(process)
    const late = texts.map((text) => write(process, text))

    const answers = await Promise.all([...writes, ...late])
    assert.equal((await closing).status, 200)
    const { lines } = await readProcessLines(await open(process))

    const taken = answers
      .map(({ status, body }, n) => ({ status, text: texts[n % texts.length]!, ...body.data }))
      .filter(({ status, code }) => {
        assert.ok(status === 200 || (status === 409 && ['stdin_closed', 'process_exited'].includes(code)), code)
        return status === 200
      })
      .sort((one, other) => one.input_seq - other.input_seq)
    assert.deepEqual(
      taken.map(({ input_seq }) => input_seq),
      taken.map((_, index) => index + 1),
    )
    assert.equal(outputOf(lines).toString(), taken.map(({ text }) => text).join(''))
    assert.deepEqual(lines.at(-1), { type: 'exit', exit_code: 0 })
  }
})

test('a stopped process accepts what fits into its pipe, blocks no other request, and can be deleted', {
  skip,
}, async () => {
  const process = await start({ cmd: 'sh', args: ['-c', 'echo stops; kill -STOP $$'] })
  await until(async () => (await get(process)).output.newest_seq === 1)
  const great = Buffer.alloc(256 * 1024, 'x')
  const first = await write(process, 'a little')
  const waiting = Array.from({ length: 8 }, () => write(process, great))

  const other = await start({ cmd: 'cat' })
  await write(other, 'hello')
  await closeStdin(other)
  const echo = await readProcessLines(await open(other))
  const ended = await send('DELETE', at(`/${process}?grace_ms=50`), ada)

  assert.deepEqual(first.body.data, { input_seq: 1 })
  assert.equal(outputOf(echo.lines).toString(), 'hello')
  assert.deepEqual([ended.body.data.state, ended.body.data.signal], ['exited', 'SIGKILL'])
  for (const { status, body } of await Promise.all(waiting)) {
    assert.deepEqual([status, body.data.code], [409, 'process_exited'])
  }
})

test('many resizes leave the terminal at the last size, and no output is lost', { skip }, async () => {
  const script =
    'stty raw -echo; trap : WINCH; n=0; while [ $n -lt 300 ]; do n=$((n+1)); echo $n; done; read x; stty size'
  const process = await start({ cmd: 'bash', args: ['-c', script], pty: {} })
  const resize = (rows: number, cols: number) => send('POST', at(`/${process}/resize`), ada, { rows, cols })

  const storm = await Promise.all(
    Array.from({ length: 200 }, (_, n) => resize(1 + ((n * 331) % 65_535), 1 + ((n * 7919) % 65_535))),
  )
  const last = await resize(31, 97)
  await write(process, '\n')
  const { lines } = await readProcessLines(await open(process))

  assert.ok([...storm, last].every(({ status }) => status === 200))
  const numbers = Array.from({ length: 300 }, (_, n) => `${n + 1}\n`)
  assert.equal(outputOf(lines).toString(), `${numbers.join('')}31 97\n`)
})

test('hundreds of readers that connect and disconnect at once leave nothing behind', { skip }, async () => {
  const process = await start({ cmd: 'sh', args: ['-c', 'yes | head -c 3000000; cat'] })
  for (let round = 0; round < 5; round++) {
    const readers = await Promise.all(Array.from({ length: 60 }, () => open(process)))
    for (const [n, reader] of readers.entries()) {
      if (n % 2) reader.destroy()
      else reader.once('data', () => reader.destroy())
    }
    await until(() => readers.every((reader) => reader.destroyed))
  }

  const { output } = await get(process)
  await closeStdin(process)
  const { lines, seq } = await readProcessLines(await open(process), output.oldest_seq - 1)

  assert.deepEqual([seq, lines.at(-1)], [output.newest_seq, { type: 'exit', exit_code: 0 }])
})

test('the reader of a rotated token is reset within a line or between two, without an exit frame', {
  skip,
}, async () => {
  const { token } = (await send('POST', `/v1/sandboxes/${id}/access-token`, ada)).body.data
  const process = await start({ cmd: 'sh', args: ['-c', 'while sleep 0.01; do echo line; done'] })
  const theirs = await open(process, { 'x-api-key': token })
  const mine = await open(process)
  const readOn = (reader: IncomingMessage) => readProcessLines(reader).catch((error: Error) => error)
  const [reading, readingOn] = [readOn(theirs), readOn(mine)]
  await until(async () => (await get(process)).output.newest_seq > 5)

  await send('POST', `/v1/sandboxes/${id}/access-token/rotate`, ada)
  const cut = await reading
  await send('DELETE', at(`/${process}?grace_ms=0`), ada)

  assert.ok(cut instanceof Error && 'code' in cut && cut.code === 'ECONNRESET', String(cut))
  const whole = await readingOn
  assert.deepEqual('lines' in whole && whole.lines.at(-1), { type: 'exit', signal: 'SIGKILL' })
})
