/** The contract between the API and the real guest agent: the same tests without any fake guest. */
import assert from 'node:assert/strict'
import { once } from 'node:events'
import net from 'node:net'
import { after, test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { encodeLine, encodeShellFrame, PROCESS_JOURNAL_MAX_BYTES, ProcessView } from '@warren/protocol'
import { Value } from 'typebox/value'
import { listenOn } from '../testing/app.ts'
import { openStream, outputOf, type ProcessLine, readProcessLines, readUpTo } from '../testing/process-lines.ts'
import { hasRealGuest, startRealGuest } from '../testing/real-guest.ts'
import { openUpgrade } from '../testing/upgrade-client.ts'
import { createHostedApp } from '../testing/with-host.ts'

const skip = hasRealGuest ? false : 'the guest agent is not built'
const { app, host, user, create, send } = await createHostedApp({ config: { processesMax: 4 }, startWorker: false })
const { port } = await listenOn(app)
const ada = await user({ plan: 'local' })
const { id } = (await create(ada)).body.data
const guest = hasRealGuest ? await startRealGuest() : undefined
if (guest) host.hooks = { guest: guest.serve }

const at = (path: string) => `/v1/sandboxes/${id}/processes${path}`
const start = (body: object) => send('POST', at(''), ada, body)
const sh = async (script: string, more: object = {}): Promise<string> => {
  const { status, body } = await start({ cmd: 'sh', args: ['-c', script], ...more })
  assert.equal(status, 200, JSON.stringify(body))
  return body.data.process_id
}
const write = (process: string, bytes: string | Buffer) =>
  send('POST', at(`/${process}/input`), ada, { data_base64: Buffer.from(bytes).toString('base64') })
const end = (process: string) => send('DELETE', at(`/${process}?grace_ms=0`), ada)

const open = (process: string, query = '') => openStream(port, at(`/${process}/connect${query}`), ada.headers)

test('a process of the real agent matches the schema, accepts every byte, and is read until its exit', {
  skip,
}, async () => {
  const { body } = await start({ cmd: 'cat', cwd: '/tmp', env: { A: 'b' } })
  const process = body.data.process_id
  assert.ok(Value.Check(ProcessView, body.data), JSON.stringify(body.data))
  assert.deepEqual([body.data.state, body.data.kind, body.data.cwd], ['running', 'process', '/tmp'])
  const all = Buffer.from(Array.from({ length: 256 }, (_, byte) => byte))
  const reading = readProcessLines(await open(process))

  assert.deepEqual((await write(process, all)).body.data, { input_seq: 1 })
  assert.deepEqual((await write(process, '')).body.data, { input_seq: 1 })
  assert.deepEqual((await send('POST', at(`/${process}/stdin/close`), ada)).body.data, {})
  const { lines } = await reading

  assert.deepEqual(outputOf(lines, 'stdout'), all)
  assert.deepEqual(lines.at(-1), { type: 'exit', exit_code: 0 })
  const waited = await send('GET', at(`/${process}/wait?scope=tree`), ada)
  assert.deepEqual([waited.body.data.state, waited.body.data.tree_exited], ['exited', true])
})

test('a terminal has the requested size', { skip }, async () => {
  const { body } = await start({ cmd: 'sh', pty: { rows: 10, cols: 20 } })
  const process = body.data.process_id
  const reading = readProcessLines(await open(process))

  await send('POST', at(`/${process}/resize`), ada, { rows: 50, cols: 132 })
  await write(process, 'stty size; exit 5\n')
  const { lines } = await reading

  assert.match(outputOf(lines, 'pty').toString(), /50 132/)
  assert.deepEqual(lines.at(-1), { type: 'exit', exit_code: 5 })
})

test('DELETE kills a process that ignores SIGTERM, and is idempotent', { skip }, async () => {
  const process = await sh('trap "" TERM; echo ready; while :; do sleep 1; done')
  await until(async () => (await send('GET', at(`/${process}`), ada)).body.data.output.bytes > 0)

  const first = await send('DELETE', at(`/${process}?grace_ms=50`), ada)
  const again = await send('DELETE', at(`/${process}`), ada)

  const { state, tree_exited, exit_code, signal } = first.body.data
  assert.deepEqual([state, tree_exited, exit_code, signal], ['exited', true, null, 'SIGKILL'])
  assert.deepEqual(again.body.data, first.body.data)
  assert.deepEqual((await readProcessLines(await open(process, '?after=1'), 1)).lines, [
    { type: 'exit', signal: 'SIGKILL' },
  ])
})

test('of a flood the newest MiB is retained; an expired offset is 410 and there are no gaps', { skip }, async () => {
  const process = await sh('head -c 5000000 /dev/zero')
  await send('GET', at(`/${process}/wait`), ada)
  const { output } = (await send('GET', at(`/${process}`), ada)).body.data
  assert.ok(output.bytes <= PROCESS_JOURNAL_MAX_BYTES && output.oldest_seq > 2, JSON.stringify(output))

  const expired = await send('GET', at(`/${process}/connect?after=1`), ada)
  assert.deepEqual([expired.status, expired.body.data.oldest_available_seq], [410, String(output.oldest_seq)])
  const kept = await readProcessLines(await open(process), output.oldest_seq - 1)

  assert.equal(outputOf(kept.lines).length, output.bytes)
  assert.deepEqual([kept.seq, kept.lines.at(-1)?.type], [output.newest_seq, 'exit'])
})

test('a reader interrupted at any byte, during and after the process, resumes without loss', {
  skip,
}, async () => {
  const process = await sh('while IFS= read -r line; do echo "$line"; echo "not $line" >&2; done; exit 7')
  for (let n = 1; n <= 2; n++) {
    await write(process, `${'x'.repeat(n * 5)} ${n}\n`)
    await until(async () => (await send('GET', at(`/${process}`), ada)).body.data.output.newest_seq === 2 * n)
  }
  const sizeOf = (lines: ProcessLine[]) => lines.reduce((sum, line) => sum + encodeLine(line).length, 0)
  const untilSeq = async (seq: number) => readUpTo(await open(process, `?after=${seq}`), sizeOf(live.slice(seq)))
  const lastSeq = (lines: ProcessLine[]) => lines.reduce((last, line) => (line.type === 'data' ? line.seq : last), 0)
  const live = await readUpTo(await open(process), Number.POSITIVE_INFINITY, 4)

  for (let cut = 0; cut <= sizeOf(live); cut++) {
    const first = await readUpTo(await open(process), cut)
    const rest = cut === sizeOf(live) ? [] : await untilSeq(lastSeq(first))
    assert.deepEqual([...first, ...rest], live, `cut at ${cut} while it was running`)
  }
  await send('POST', at(`/${process}/stdin/close`), ada)
  const whole = [...live, { type: 'exit', exit_code: 7 } as const]
  for (let cut = 0; cut < sizeOf(whole); cut++) {
    const first = await readUpTo(await open(process), cut)
    const seq = lastSeq(first)
    const rest = await readProcessLines(await open(process, `?after=${seq}`), seq)
    assert.deepEqual([...first, ...rest.lines], whole, `cut at ${cut} when it was over`)
  }
})

test('the error codes of the real agent become those of the API', { skip }, async () => {
  const pipe = await sh('cat')
  const pty = (await start({ pty: {} })).body.data.process_id
  const ended = await sh('true')
  await send('GET', at(`/${ended}/wait`), ada)
  await send('POST', at(`/${pipe}/stdin/close`), ada)
  await send('GET', at(`/${pipe}/wait`), ada)
  const live = [await sh('exec sleep 60'), await sh('exec sleep 60'), await sh('exec sleep 60')]
  const cases: [Promise<{ status: number; body: { data: Record<string, string> } }>, number, string][] = [
    [send('POST', at(`/${pty}/stdin/close`), ada), 409, 'wrong_process_kind'],
    [send('POST', at(`/${live[0]}/resize`), ada, { rows: 1, cols: 1 }), 409, 'wrong_process_kind'],
    [write(ended, 'x'), 409, 'process_exited'],
    [send('POST', at(`/${ended}/signal`), ada, { signal: 'SIGHUP' }), 409, 'process_exited'],
    [send('GET', at('/proc_nobody'), ada), 404, 'process_not_found'],
    [send('GET', at(`/${live[0]}/wait?timeout_ms=20`), ada), 408, 'wait_timeout'],
    [start({ cmd: 'cat' }), 429, 'process_limit_reached'],
  ]
  for (const [asked, status, code] of cases) {
    const answer = await asked
    assert.deepEqual([answer.status, answer.body.data.code], [status, code])
  }
  for (const process of [pty, ...live]) await end(process)
  const noCommand = await start({ cmd: 'no-such-program' })
  const noPlace = await start({ cmd: 'true', cwd: '/no/such/place' })
  assert.ok('cmd' in noCommand.body.data && 'cwd' in noPlace.body.data, JSON.stringify([noCommand.body, noPlace.body]))
})

test('a shell has a terminal and exits', { skip }, async () => {
  const input = (text: string) => encodeShellFrame({ type: 'input', data: Buffer.from(text) })
  const early = Buffer.concat([encodeShellFrame({ type: 'resize', rows: 50, cols: 132 }), input('stty size\n')])
  const peer = openUpgrade(port, `POST /v1/sandboxes/${id}/shell`, { 'X-Api-Key': ada.key }, early)

  await peer.until(/50 132/)
  peer.socket.write(input('exit\n'))

  await until(() => peer.socket.readableEnded)
  peer.socket.destroy()
})

test('a tunnel passes bytes and half-closes; a port where nothing listens is 502', { skip }, async () => {
  const server = net.createServer({ allowHalfOpen: true }, (socket) => {
    socket.on('error', () => {})
    let bytes = 0
    socket.on('data', (chunk) => {
      bytes += chunk.length
    })
    socket.once('end', () => socket.end(`got ${bytes}`))
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  after(() => server.close())
  const { port: to } = server.address() as net.AddressInfo
  const tunnel = (where: number, early: string | Buffer) =>
    openUpgrade(port, `POST /v1/sandboxes/${id}/tunnel/${where}`, { 'X-Api-Key': ada.key }, early)

  const peer = tunnel(to, 'early ')
  await peer.head()
  peer.socket.end(Buffer.alloc(3_000_000))
  await until(() => peer.socket.readableEnded)
  assert.equal(peer.body().toString(), 'got 3000006')

  const refused = tunnel(1, '')
  assert.match(await refused.head(), /^HTTP\/1\.1 502 /)
  for (const one of [peer, refused]) one.socket.destroy()
})

test('a special file is refused with the reason, and none of them is a 502 or hangs', { skip }, async () => {
  const request = (method: 'GET' | 'PUT', path: string) => {
    const body = method === 'PUT' ? { body: 'text' } : {}
    const url = `http://127.0.0.1:${port}/v1/sandboxes/${id}/files?path=${path}`
    return fetch(url, { method, headers: ada.headers, ...body })
  }
  const file = async (method: 'GET' | 'PUT', path: string) => {
    const response = await request(method, path)
    const { data } = (await response.json()) as { data: { path?: string; code: string } }
    return [response.status, data.path ?? data.code]
  }

  assert.deepEqual(await file('GET', '/proc/self/mem'), [
    400,
    '/proc/self/mem cannot be read: Input/output error (os error 5)',
  ])
  assert.deepEqual(await file('GET', '/dev/zero'), [400, 'path is not a regular file'])
  const [status, reason] = await file('PUT', '/proc/version')
  assert.equal(status, 400)
  assert.match(String(reason), /^\/proc\/version cannot be written: /)
  assert.deepEqual(await file('GET', '/proc/no-such-file'), [404, 'file_not_found'])
  // The kernel reports 4096 bytes for this one.
  const sysfs = await request('GET', '/sys/kernel/mm/transparent_hugepage/enabled')
  assert.equal(sysfs.status, 200)
  assert.match(await sysfs.text(), /always/)
})

test('when the agent is killed, output ends with an error and never with an exit', { skip }, async () => {
  const process = await sh('echo hello; exec sleep 60')
  const response = await open(process)
  const reading = readProcessLines(response)
  await until(async () => (await send('GET', at(`/${process}`), ada)).body.data.output.bytes > 0)
  const { pid } = (await send('GET', at(`/${process}`), ada)).body.data

  guest!.agent.kill('SIGKILL')
  const { lines } = await reading

  assert.equal(outputOf(lines).toString(), 'hello\n')
  assert.deepEqual(lines.at(-1), { type: 'error', error: 'guest unreachable' })
  globalThis.process.kill(pid, 'SIGKILL')
})
