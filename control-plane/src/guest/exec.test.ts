import assert from 'node:assert/strict'
import { once } from 'node:events'
import { request as httpRequest, type IncomingMessage } from 'node:http'
import type { ServerHttp2Stream } from 'node:http2'
import { test } from 'node:test'
import { passTime } from '@warren/kit/testing/pass-time'
import { until } from '@warren/kit/testing/until'
import { EXEC_OUTPUT_MAX_BYTES, guestExecFrame } from '@warren/protocol'
import { listenOn } from '../testing/app.ts'
import { insertSandbox } from '../testing/sandboxes.ts'
import { createHostedApp } from '../testing/with-host.ts'
import { hashKey } from '../users/keys.ts'
import { flushActivity } from './activity.ts'

const { app, deps, host, user, create, send } = await createHostedApp({ config: { execLimitSeconds: 20 } })
const { port } = await listenOn(app)
const ada = await user()
const { id } = (await create(ada, { envs: { GREETING: 'hello', OTHER: 'x' } })).body.data
const commands = host.vms.get(id)!.guest.commands

test.beforeEach(() => {
  host.hooks = {}
})

const exec = (body: object, who = ada, sandbox = id) => send('POST', `/v1/sandboxes/${sandbox}/exec`, who, body)
const sh = (script: string, more: object = {}) => exec({ cmd: 'sh', args: ['-c', script], ...more })

test('a command returns its output, its exit code and its duration', async () => {
  const { status, body } = await sh('echo out; echo err >&2; exit 3')

  assert.equal(status, 200)
  assert.deepEqual(body.data.result, { stdout: 'out\n', stderr: 'err\n', exit_code: 3 })
  assert.ok(body.data.exec_ms > 0)
})

test('closing the connection after the response to a create does not affect the sandbox', async () => {
  const request = httpRequest({ port, method: 'POST', path: '/v1/sandboxes', headers: ada.headers, agent: false })
  request.end(JSON.stringify({ shape: 's-1vcpu-256mb' }))
  const [response] = (await once(request, 'response')) as [IncomingMessage]
  const { data } = JSON.parse(Buffer.concat(await response.toArray()).toString())
  request.destroy()
  await passTime(100, 'nothing may happen to the sandbox')

  assert.equal((await send('GET', `/v1/sandboxes/${data.id}`, ada)).body.data.status, 'running')
  await send('DELETE', `/v1/sandboxes/${data.id}`, ada)
})

test('a command that cannot start has an error message and the exit code of a shell', async () => {
  const missing = (await exec({ cmd: 'no-such-program' })).body.data.result
  const directory = (await exec({ cmd: '/tmp' })).body.data.result

  assert.deepEqual({ ...missing, error: '' }, { stdout: '', stderr: '', exit_code: 127, error: '' })
  assert.match(missing.error, /no-such-program/)
  assert.deepEqual([directory.exit_code, typeof directory.error], [126, 'string'])
})

test('a death by signal is 128 and its number', async () => {
  assert.equal((await sh('kill -TERM $$')).body.data.result.exit_code, 143)
  assert.equal((await sh('kill -KILL $$')).body.data.result.exit_code, 137)
})

test('stdin arrives completely, even if it is large, and is empty if absent', async () => {
  const large = 'zeile ü\n'.repeat(200_000)

  assert.equal((await exec({ cmd: 'wc', args: ['-c'], stdin: large })).body.data.result.stdout.trim(), '1800000')
  assert.equal((await exec({ cmd: 'cat', stdin: 'hällo' })).body.data.result.stdout, 'hällo')
  assert.equal((await exec({ cmd: 'cat' })).body.data.result.stdout, '')
  assert.equal((await exec({ cmd: 'true', stdin: large })).body.data.result.exit_code, 0)
})

test('declared variables are set and can be overridden; undeclared ones are rejected by name', async () => {
  assert.equal((await sh('echo $GREETING $OTHER')).body.data.result.stdout, 'hello x\n')
  assert.equal((await sh('echo $GREETING', { env: { GREETING: 'bye' } })).body.data.result.stdout, 'bye\n')
  assert.equal((await sh('echo $GREETING', { env: null, args: ['-c', 'echo $GREETING'] })).status, 200)

  const undeclared = await sh('true', { env: { SECRET: 'x' } })
  assert.deepEqual(
    [undeclared.status, undeclared.body.data],
    [400, { env: 'SECRET was not declared in the envs of the sandbox', code: 'validation_failed' }],
  )
})

test('an invalid body is 400 with the name of the field', async () => {
  const faults: [object, string][] = [
    [{}, 'cmd'],
    [{ cmd: '' }, 'cmd'],
    [{ cmd: 5 }, 'cmd'],
    [{ cmd: 'a\0b' }, 'cmd'],
    [{ cmd: 'true', args: ['a\0'] }, 'args'],
    [{ cmd: 'true', args: 'x' }, 'args'],
    [{ cmd: 'true', args: ['x'.repeat(1024 * 1024)] }, 'args'],
    [{ cmd: 'true', env: { GREETING: 'x\0' } }, 'env'],
    [{ cmd: 'true', env: { GREETING: 'x'.repeat(4097) } }, 'env'],
    [{ cmd: 'true', stdin: 5 }, 'stdin'],
  ]
  for (const [body, field] of faults) {
    const answer = await exec(body)
    assert.equal(answer.status, 400, JSON.stringify(answer.body))
    assert.ok(field in answer.body.data, `${field}: ${JSON.stringify(answer.body)}`)
  }
})

test('output over 1 MiB is truncated with a notice, and the exit code is correct', async () => {
  const { result } = (await sh('head -c 1500000 /dev/zero | tr "\\0" x; echo few >&2; exit 7')).body.data

  assert.equal(result.stdout, `${'x'.repeat(EXEC_OUTPUT_MAX_BYTES)}\n[output truncated: exceeded 1 MiB]\n`)
  assert.deepEqual([result.stderr, result.exit_code], ['few\n', 7])
})

test('exactly 1 MiB is not truncated, and truncation never splits a character', async () => {
  const exact = (await sh(`head -c ${EXEC_OUTPUT_MAX_BYTES} /dev/zero | tr "\\0" x`)).body.data.result.stdout
  // Three bytes each, and 1 MiB is not a multiple of three.
  const euros = (await sh(`i=0; while [ $i -lt 400 ]; do printf '%01000d' 0 | sed 's/0/€/g'; i=$((i+1)); done`)).body
    .data.result.stdout

  assert.equal(exact.length, EXEC_OUTPUT_MAX_BYTES)
  assert.equal(euros, `${'€'.repeat(Math.floor(EXEC_OUTPUT_MAX_BYTES / 3))}\n[output truncated: exceeded 1 MiB]\n`)
})

test('bytes that are not valid UTF-8 become U+FFFD', async () => {
  assert.equal((await sh("printf 'a\\377b'")).body.data.result.stdout, 'a�b')
})

test('a sandbox that is not running is 404 with its status', async () => {
  for (const status of ['pausing', 'paused', 'error', 'destroyed', 'failed'] as const) {
    const row = await insertSandbox(deps.db, ada.id, status, { owner: deps.processId })
    const answer = await exec({ cmd: 'true' }, ada, row.id)
    assert.deepEqual(
      [answer.status, answer.body.data],
      [404, { message: `sandbox is ${status}, expected running`, code: 'sandbox_not_running' }],
    )
  }
})

test('a command that a pause interrupts is a conflict, and one that the host refused has not started', async () => {
  const pauseWhileRunning = (answer: (stream: ServerHttp2Stream) => void) => ({
    guest: async (stream: ServerHttp2Stream) => {
      await deps.db.updateTable('sandboxes').set({ status: 'pausing' }).where('id', '=', id).execute()
      answer(stream)
    },
  })
  const respondThenClose = (stream: ServerHttp2Stream) => {
    stream.respond({ ':status': 200 })
    stream.write(guestExecFrame('started', Buffer.alloc(0)))
    stream.close()
  }
  const refuse = (stream: ServerHttp2Stream) => {
    stream.respond({ ':status': 409 })
    stream.end(JSON.stringify({ code: 'wrong_state', message: 'the VM is not running' }))
  }
  const answers = []
  for (const answer of [respondThenClose, (stream: ServerHttp2Stream) => stream.close(), refuse]) {
    host.hooks = pauseWhileRunning(answer)
    const { status, body } = await exec({ cmd: 'true' })
    answers.push([status, body.data])
    await deps.db.updateTable('sandboxes').set({ status: 'running' }).where('id', '=', id).execute()
  }

  const interrupted = { message: 'the command was interrupted: sandbox is pausing', code: 'exec_interrupted' }
  const notRunning = { message: 'sandbox is pausing, expected running', code: 'sandbox_not_running' }
  assert.deepEqual(answers, [
    [409, interrupted],
    [409, interrupted],
    [404, notRunning],
  ])
})

test('a sandbox of another user is not found, and its access token may run commands in it', async () => {
  const bob = await user()
  const token = 'skp_sb_test'
  await deps.db
    .insertInto('access_tokens')
    .values({ sandbox_id: id, hash: hashKey(token), hint: '' })
    .execute()

  assert.equal((await exec({ cmd: 'true' }, bob)).body.data.message, 'sandbox not found')
  assert.equal((await exec({ cmd: 'true' }, { ...ada, headers: { 'x-api-key': token } })).status, 200)
})

test('a guest or host that cannot be reached is 502', async () => {
  host.hooks = { guest: (stream) => stream.close() }
  const refused = await exec({ cmd: 'true' })
  host.hooks = {}
  await host.stop()
  const absent = await exec({ cmd: 'true' })
  await host.start()

  const unreachable = { status: 'error', message: 'guest unreachable', code: 502 }
  assert.deepEqual([refused.status, refused.body, absent.body], [502, unreachable, unreachable])
  assert.equal((await exec({ cmd: 'true' })).status, 200)
})

test('invalid responses of a hostile guest are 502 and are not forwarded', async () => {
  const json = (value: unknown) => Buffer.from(JSON.stringify(value))
  const started = guestExecFrame('started', json({ pid: 1 }))
  const lies: Uint8Array[][] = [
    [],
    [Buffer.from('HTTP/1.1 200 OK')],
    [guestExecFrame('exit', json({ code: 0, timed_out: false }))],
    [started, guestExecFrame('exit', json({ timed_out: false }))],
    [started, guestExecFrame('exit', json({ code: 1, signal: 1, timed_out: false }))],
    [started, guestExecFrame('exit', json({ code: 4000, timed_out: false }))],
    [started, guestExecFrame('exit', Buffer.from('nonsense'))],
    [started, started],
    [started, guestExecFrame('error', json({ kind: 'other', message: 'late' }))],
    [started, Buffer.from([1, 0xff, 0xff, 0xff, 0xff])],
    [Buffer.from([77, 0, 0, 0, 0])],
    [started, guestExecFrame('stdout', Buffer.from('half'))],
  ]
  for (const lie of lies) {
    host.hooks = {
      guest: (stream) => {
        stream.respond({ ':status': 200 })
        for (const piece of lie) stream.write(piece)
        stream.end()
      },
    }
    const { status, body } = await exec({ cmd: 'true' })
    assert.deepEqual([status, body.message], [502, 'guest unreachable'], JSON.stringify(lie.map(String)))
  }
  host.hooks = {
    guest: (stream) => {
      stream.respond({ ':status': 500 })
      stream.end(Buffer.alloc(1024 * 1024))
    },
  }
  assert.equal((await exec({ cmd: 'true' })).status, 502)
})

test('the command of a caller that disconnects is killed, buffered or streamed, without a warning in the log', async (t) => {
  const warnings = t.mock.method(deps.log, 'warn').mock
  const debugLog = t.mock.method(deps.log, 'debug').mock
  for (const path of [`/v1/sandboxes/${id}/exec`, `/v1/sandboxes/${id}/exec?stream=true`]) {
    const request = httpRequest({ port, method: 'POST', path, headers: ada.headers })
    request.on('error', () => {})
    request.end(JSON.stringify({ cmd: 'sleep', args: ['100'] }))
    await until(() => commands.size === 1)

    request.destroy()

    await until(() => commands.size === 0, 'the command has ended', 5_000)
  }

  await until(() => debugLog.calls.some((call) => /the caller disconnected/.test(String(call.arguments[1]))))
  assert.equal(warnings.callCount(), 0)
})

test('processes that a command leaves in the background survive its response', async () => {
  const { result } = (await sh('sleep 30 >/dev/null 2>&1 & echo $!')).body.data
  await passTime(200, 'it must survive, so nothing may happen')

  const pid = Number(result.stdout)
  process.kill(pid, 0)
  process.kill(pid, 'SIGKILL')
})

test('the time limit kills a command with a notice', async () => {
  deps.config.execLimitSeconds = 1
  const { result } = (await sh('echo begun; sleep 30')).body.data
  deps.config.execLimitSeconds = 20

  assert.deepEqual([result.stdout, result.exit_code, result.stderr], ['begun\n', 137, '[killed: exceeded 1 s]\n'])
})

test('activity is recorded while a command runs and written by a sweep', async () => {
  const lastActive = async () =>
    (await deps.db.selectFrom('sandboxes').select('last_active_at').where('id', '=', id).executeTakeFirstOrThrow())
      .last_active_at
  await exec({ cmd: 'true' })
  await flushActivity.run(deps)
  const first = await lastActive()
  await exec({ cmd: 'true' })
  await flushActivity.run(deps)

  assert.ok(first && (await lastActive())! > first)
})
