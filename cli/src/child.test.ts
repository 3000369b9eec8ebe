/** Messages of services that were taken over. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Type } from 'typebox'
import { startChild } from './child.ts'
import { ControlPlaneListening, ControlPlaneReady } from './child-messages.ts'

const SETTINGS = {
  name: 'the service',
  command: process.execPath,
  env: { PATH: process.env.PATH },
  startLimitMs: 30_000,
  stopLimitMs: 5_000,
  onSpawn: async () => {},
}
const signal = new AbortController().signal

for (const message of ['null', '7', '"text"', '[]', '{}', '{ ready: 1 }', '{ progress: {} }', '{ failed: [] }']) {
  test(`a service that sends ${message} is ended, and the launcher continues`, async () => {
    const script = `process.send(${message}); setInterval(() => {}, 1000)`

    const started = startChild({ ...SETTINGS, args: ['-e', script], ready: ControlPlaneReady }, signal)

    await assert.rejects(started, /the service did not start \(ended by SIGKILL\)/)
  })
}

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
