/** Messages of services that were taken over. */
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtemp, open, readFile, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { test } from 'node:test'
import { Type } from 'typebox'
import { startChild } from './child.ts'
import { ControlPlaneListening, ControlPlaneReady, Failed } from './child-messages.ts'

const SETTINGS = {
  name: 'the service',
  command: process.execPath,
  env: { PATH: process.env.PATH },
  startLimitMs: 30_000,
  stopLimitMs: 5_000,
  onSpawn: async () => {},
}
const CONFINED = { ...SETTINGS, ready: ControlPlaneReady, isConfined: true }
const signal = new AbortController().signal

for (const message of ['null', '7', '"text"', '[]', '{}', '{ ready: 1 }', '{ progress: {} }', '{ failed: [] }']) {
  test(`a service that sends ${message} is ended, and the launcher continues`, async () => {
    const script = `process.send(${message}); setInterval(() => {}, 1000)`

    const started = startChild({ ...SETTINGS, args: ['-e', script], ready: ControlPlaneReady }, signal)

    await assert.rejects(started, /the service did not start \(ended by SIGKILL\)/)
  })
}

for (const [what, bytes] of [
  ['what is not JSON', '"garbage\\n"'],
  ['a message of Node itself', String.raw`'{"cmd":"NODE_HANDLE_ACK"}\n'`],
  ['a message of Node that Node would ignore', String.raw`'{"cmd":"NODE_x"}\n'`],
  ['a message that does not end', '"x".repeat(2_000_000)'],
  ['a message that it should not send', String.raw`'{"ready":1}\n'`],
]) {
  test(`a service in a jail that writes ${what} to its channel is ended, and the launcher continues`, async () => {
    const script = `fs.writeSync(3, ${bytes}); setInterval(() => {}, 1000)`

    const started = startChild({ ...CONFINED, args: ['-e', script] }, signal)

    await assert.rejects(started, /the service did not start \(ended by SIGKILL\)/)
  })
}

test('a service in a jail reports that it is ready, and replies', async () => {
  const channel = JSON.stringify(path.resolve(import.meta.dirname, '../../kit/src/parent-channel.ts'))
  const script = `
    import { openParentChannel } from ${channel}
    const parent = openParentChannel(() => process.exit())
    parent.onMessage(() => parent.send({ failed: 'a\\u001b[2Jb' }))
    parent.send({ ready: true })`
  const child = await startChild({ ...CONFINED, args: ['--input-type=module', '-e', script] }, signal)

  assert.deepEqual(await child.request({ listen: true }, Failed), { failed: 'a\u001b[2Jb' })
  await child.stop()
})

test('what a service in a jail prints is copied without what a terminal would act on', async (t) => {
  const print = String.raw`
    fs.writeSync(1, "one\u001b[2J\n")
    try { fs.ftruncateSync(1) } catch { fs.writeSync(1, "cannot truncate it\n") }`
  const source = (name: string) => JSON.stringify(path.join(import.meta.dirname, name))
  const launcher = `
    import { startChild } from ${source('child.ts')}
    import { ControlPlaneReady } from ${source('child-messages.ts')}
    console.log('a line of the launcher')
    const settings = { ...${JSON.stringify({ ...CONFINED, args: ['-e', print] })}, ready: ControlPlaneReady, onSpawn: async () => {} }
    await startChild(settings, new AbortController().signal).catch((error) => console.log(error.message))`
  const folder = await mkdtemp(path.join(tmpdir(), 'warren-child-'))
  t.after(() => rm(folder, { recursive: true }))
  const file = path.join(folder, 'log')
  const log = await open(file, 'a')
  t.after(() => log.close())

  // As in `warren start >> log`.
  const stdio = ['ignore', log.fd, 'inherit'] as const
  await once(spawn(process.execPath, ['--input-type=module', '-e', launcher], { stdio: [...stdio] }), 'exit')

  assert.equal(
    await readFile(file, 'utf8'),
    'a line of the launcher\none?[2J\ncannot truncate it\nthe service did not start (exit status 0)\n',
  )
})

test('a service that sends another message later is ended', async () => {
  const script =
    'process.send({ ready: true }); process.on("message", () => process.send({ listening: true, baseUrl: "http://a;id" }))'
  const settings = { ...SETTINGS, args: ['-e', script], ready: ControlPlaneReady, replies: [ControlPlaneListening] }
  const child = await startChild(settings, signal)

  await assert.rejects(
    child.request({ listen: true }, ControlPlaneListening),
    /ended before it replied \(ended by SIGKILL\)/,
  )
})

test('what is prepared for a service is removed when it has ended', async () => {
  let isReleased = false
  const release = async () => {
    isReleased = true
  }
  const script = 'process.send({ ready: true, port: 7 }); setInterval(() => {}, 1000)'
  const ready = Type.Object({ ready: Type.Literal(true), port: Type.Integer() })
  const child = await startChild({ ...SETTINGS, args: ['-e', script], ready, release }, signal)
  assert.equal(child.port, 7)

  await child.stop()

  assert.equal(await child.exited, 'ended by SIGTERM')
  assert.equal(isReleased, true)
})
