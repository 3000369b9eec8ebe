import assert from 'node:assert/strict'
import { test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { PROCESS_INPUT_MAX_BYTES, ProcessView } from '@warren/protocol'
import { Value } from 'typebox/value'
import { insertSandbox } from '../testing/sandboxes.ts'
import { createHostedApp } from '../testing/with-host.ts'

const { app, deps, host, user, create, send } = await createHostedApp({ config: { processesMax: 8 } })
const ada = await user({ plan: 'local' })
const { id } = (await create(ada, { envs: { GREETING: 'hello' } })).body.data
const guest = host.vms.get(id)!.guest

const at = (path = '', sandbox = id) => `/v1/sandboxes/${sandbox}/processes${path}`
const start = (body: object, sandbox = id) => send('POST', at('', sandbox), ada, body)
const sh = async (script: string, more: object = {}): Promise<string> =>
  (await start({ cmd: 'sh', args: ['-c', script], ...more })).body.data.process_id
const base64 = (text: string) => Buffer.from(text).toString('base64')
const outputOf = (process: string) => Buffer.concat(guest.processes.get(process)!.events.map((event) => event.bytes))

test.beforeEach(() => {
  host.hooks = {}
})
test.afterEach(async () => {
  for (const process of guest.processes.keys()) await send('DELETE', at(`/${process}?grace_ms=0`), ada)
})

test('a process is started, listed and read, and unknown fields of the guest are dropped', async () => {
  const { status, body } = await start({ cmd: 'cat', args: ['-u'], cwd: '/', env: { LC_ALL: 'C' } })

  assert.equal(status, 200)
  const { process_id: process, ...view } = body.data
  assert.ok(Value.Check(ProcessView, body.data), JSON.stringify(body.data))
  assert.deepEqual(
    [view.kind, view.state, view.cmd, view.args, view.cwd, view.exit_code, view.finished_at],
    ['process', 'running', 'cat', ['-u'], '/', null, null],
  )
  assert.deepEqual(view.output, { oldest_seq: 0, newest_seq: 0, bytes: 0 })
  assert.ok(!('secret_of_the_guest' in view))
  assert.equal((await send('GET', at(`/${process}`), ada)).body.data.process_id, process)
  assert.deepEqual(
    (await send('GET', at(), ada)).body.data.processes.map((one: ProcessView) => one.process_id),
    [process],
  )
})

test('a process has the environment of the sandbox plus any variables of the request', async () => {
  const process = await sh('echo $GREETING $NEW', { env: { NEW: 'world' } })

  await send('GET', at(`/${process}/wait`), ada)
  assert.equal(outputOf(process).toString(), 'hello world\n')
})

test('pty creates a terminal, even without a command; it can be resized, but its stdin not closed', async () => {
  const { body } = await start({ pty: {} })
  const process = body.data.process_id
  assert.equal(body.data.kind, 'pty')

  const resized = await send('POST', at(`/${process}/resize`), ada, { rows: 50, cols: 132 })
  const closed = await send('POST', at(`/${process}/stdin/close`), ada)

  assert.deepEqual(resized.body, { status: 'success', data: {} })
  assert.deepEqual(guest.processes.get(process)!.size, { rows: 50, cols: 132 })
  assert.deepEqual([closed.status, closed.body.data.code], [409, 'wrong_process_kind'])
})

test('input is written in order and counted unless it is empty; a closed stdin rejects it', async () => {
  const process = await sh('cat')
  const write = async (text: string) =>
    (await send('POST', at(`/${process}/input`), ada, { data_base64: base64(text) })).body.data

  assert.deepEqual(
    [await write('one '), await write(''), await write('two')],
    [{ input_seq: 1 }, { input_seq: 1 }, { input_seq: 2 }],
  )
  assert.deepEqual((await send('POST', at(`/${process}/stdin/close`), ada)).body.data, {})
  const { body } = await send('GET', at(`/${process}/wait?scope=tree`), ada)

  assert.deepEqual([body.data.state, body.data.exit_code], ['exited', 0])
  assert.equal(outputOf(process).toString(), 'one two')
})

test('every byte value passes through input', async () => {
  const process = await sh('head -c 256')
  const all = Buffer.from(Array.from({ length: 256 }, (_, byte) => byte))

  await send('POST', at(`/${process}/input`), ada, { data_base64: all.toString('base64') })

  await send('GET', at(`/${process}/wait`), ada)
  assert.deepEqual(outputOf(process), all)
})

test('wait returns when the process has ended, or 408; a wait over 30 s is clamped', async () => {
  const process = await sh('cat')

  const early = await send('GET', at(`/${process}/wait?timeout_ms=20`), ada)
  assert.deepEqual([early.status, early.body.data.code], [408, 'wait_timeout'])
  const waiting = send('GET', at(`/${process}/wait?timeout_ms=999999&scope=`), ada)
  await until(() => host.calls.some((call) => call.endsWith(`${process}/wait`)))
  await send('POST', at(`/${process}/signal`), ada, { signal: 'SIGTERM' })

  const { status, body } = await waiting
  assert.deepEqual([status, body.data.exit_code, body.data.signal], [200, null, 'SIGTERM'])
})

test('DELETE stops a process, kills it after the grace period, and is idempotent', async () => {
  const stubborn = await sh('trap "" TERM; echo ready; while :; do sleep 1; done')
  await until(() => outputOf(stubborn).length > 0)

  const first = await send('DELETE', at(`/${stubborn}?grace_ms=50`), ada)
  const again = await send('DELETE', at(`/${stubborn}`), ada)

  const { state, tree_exited, exit_code, signal } = first.body.data
  assert.deepEqual([state, tree_exited, exit_code, signal], ['exited', true, null, 'SIGKILL'])
  assert.deepEqual(again.body.data, first.body.data)
})

test('input, close, resize and signal of an ended process are 409, and its record remains', async () => {
  const pipe = await sh('true')
  const pty = (await start({ cmd: 'true', pty: {} })).body.data.process_id
  for (const process of [pipe, pty]) await send('GET', at(`/${process}/wait`), ada)

  const answers = [
    await send('POST', at(`/${pipe}/input`), ada, { data_base64: base64('x') }),
    await send('POST', at(`/${pipe}/stdin/close`), ada),
    await send('POST', at(`/${pty}/resize`), ada, { rows: 1, cols: 1 }),
    await send('POST', at(`/${pipe}/signal`), ada, { signal: 'SIGHUP' }),
  ]

  for (const { status, body } of answers) assert.deepEqual([status, body.data.code], [409, 'process_exited'])
  assert.equal((await send('GET', at(`/${pipe}`), ada)).body.data.exit_code, 0)
})

test('an invalid request is 400 with the name of the field', async () => {
  const process = await sh('cat')
  const tooMuch = base64('x'.repeat(PROCESS_INPUT_MAX_BYTES + 1))
  const cases: [string, string, object | undefined, string][] = [
    ['POST', '', {}, 'cmd'],
    ['POST', '', { cmd: 'a\0b' }, 'cmd'],
    ['POST', '', { cmd: 'x', args: ['\0'] }, 'args'],
    ['POST', '', { cmd: 'x', args: ['a'.repeat(300_000)] }, 'args'],
    ['POST', '', { cmd: 'x', env: { '1A': 'x' } }, 'env'],
    ['POST', '', { cmd: 'no-such-program' }, 'cmd'],
    ['POST', '', { cmd: 'true', cwd: '/no/such/place' }, 'cwd'],
    ['POST', '', { cmd: 'true', pty: { rows: 70_000 } }, 'pty.rows'],
    ['POST', `/${process}/input`, { data_base64: '%' }, 'data_base64'],
    ['POST', `/${process}/input`, { data_base64: tooMuch }, 'data_base64'],
    ['POST', `/${process}/signal`, { signal: 'SIGSTOP' }, 'signal'],
    ['POST', `/${process}/resize`, { rows: 0, cols: 1 }, 'rows'],
    ['DELETE', `/${process}?grace_ms=60001`, undefined, 'grace_ms'],
    ['GET', `/${process}/wait?scope=all`, undefined, 'scope'],
    ['GET', `/${process}/connect?after=-1`, undefined, 'after'],
  ]
  for (const [method, path, body, field] of cases) {
    const answer = await send(method as 'POST', at(path), ada, body)
    assert.equal(answer.status, 400, `${path} ${JSON.stringify(body)?.slice(0, 80)} ${JSON.stringify(answer.body)}`)
    assert.ok(field in answer.body.data, `${field}: ${JSON.stringify(answer.body.data)}`)
  }
})

test('an unknown process is 404, whatever its id looks like', async () => {
  for (const process of ['proc_nobody', 'nonsense', '%2E%2E%2Fexec', 'proc_%2F..%2Ffiles', 'proc_a?x']) {
    const { status, body } = await send('GET', at(`/${process}/wait`.replace('?x/wait', '')), ada)
    assert.deepEqual([status, body.data], [404, { message: 'process not found', code: 'process_not_found' }], process)
  }
})

test('more running processes than the limit is 429', async () => {
  for (let i = 0; i < 8; i++) await sh('cat')

  const { status, body } = await start({ cmd: 'cat' })

  assert.deepEqual([status, body.data.code], [429, 'process_limit_reached'])
})

test('the same Idempotency-Key starts one process', async () => {
  const post = () =>
    app.inject({
      method: 'POST',
      url: at(),
      headers: { ...ada.headers, 'idempotency-key': 'once' },
      payload: { cmd: 'cat' },
    })

  const [first, second] = [await post(), await post()]

  assert.equal(first.payload, second.payload)
})

test('a sandbox that is not running is 409, with the text that clients match', async () => {
  const { id: paused } = await insertSandbox(deps.db, ada.id, 'paused')
  const answers = [
    await start({ cmd: 'true' }, paused),
    await send('GET', at('', paused), ada),
    await send('GET', at('/proc_1/connect', paused), ada),
    await send('POST', at('/proc_1/input', paused), ada, { data_base64: '' }),
  ]
  for (const { status, body } of answers) {
    assert.deepEqual([status, body.data.message], [409, 'sandbox is paused, expected running'])
    assert.equal(body.data.code, 'wrong_state')
  }
})

test('an invalid response of the guest, or none, is 502', async () => {
  host.hooks = {
    guest: (stream) => {
      stream.resume()
      stream.respond({ ':status': 200 })
      stream.end('{"process_id":"../../etc"}')
    },
  }
  assert.equal((await send('GET', at('/proc_1'), ada)).status, 502)
  host.hooks = { guest: (stream) => stream.close(2) }
  assert.equal((await send('GET', at('/proc_1'), ada)).status, 502)
})

test('start and input count as activity; reading records does not', async () => {
  const process = await sh('cat')
  deps.activity.drain()

  await send('GET', at(), ada)
  await send('GET', at(`/${process}`), ada)
  await send('GET', at(`/${process}/wait?timeout_ms=10`), ada)
  assert.ok(!deps.activity.drain().has(id))

  await send('POST', at(`/${process}/input`), ada, { data_base64: base64('x') })
  assert.ok(deps.activity.drain().has(id))
  await sh('true')
  assert.ok(deps.activity.drain().has(id))
})
