import assert from 'node:assert/strict'
import { once } from 'node:events'
import http2, { type ClientHttp2Session, type ServerHttp2Stream } from 'node:http2'
import type { AddressInfo } from 'node:net'
import { type TestContext, test } from 'node:test'
import { waitForClock } from './wait-for-clock.ts'

const { signal } = new AbortController()

test('a guest that has booted faster than it could measure its clock is waited for', async (t) => {
  const { session, asked } = await startGuest(t, ['tsc-early', 'tsc-early', 'tsc'])

  assert.equal((await waitForClock(session, signal)).clocksource, 'tsc')
  assert.equal(asked(), 3)
})

test('a guest with a clock source that it will keep is not waited for', async (t) => {
  for (const clocksource of ['tsc', 'kvm-clock']) {
    const { session, asked } = await startGuest(t, [clocksource])
    await waitForClock(session, signal)
    assert.equal(asked(), 1)
  }
  const { session, asked } = await startGuest(t, ['acpi_pm'])
  await assert.rejects(waitForClock(session, signal), /clock source acpi_pm, expected tsc or kvm-clock/)
  assert.equal(asked(), 1)
})

test('a guest that never decides fails', async (t) => {
  const { session } = await startGuest(t, ['tsc-early'])

  await assert.rejects(waitForClock(session, signal, 1), /clock source tsc-early/)
})

test('the wait ends with its signal', async (t) => {
  const { session } = await startGuest(t, ['tsc-early'])
  const controller = new AbortController()
  const waiting = waitForClock(session, controller.signal)

  controller.abort(new Error('the host agent stops'))

  await assert.rejects(waiting)
})

/** Answers with one after the other, and with the last one from then on. */
async function startGuest(
  t: TestContext,
  clocksources: readonly string[],
): Promise<{ session: ClientHttp2Session; asked: () => number }> {
  let asked = 0
  const server = http2.createServer()
  server.on('stream', (stream: ServerHttp2Stream) => {
    const clocksource = clocksources[Math.min(asked++, clocksources.length - 1)]
    stream.respond({ ':status': 200 })
    stream.end(JSON.stringify({ agent_version: '0', boot_id: 'b', uptime_ms: 900, clocksource }))
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  const session = http2.connect(`http://127.0.0.1:${(server.address() as AddressInfo).port}`)
  t.after(() => {
    session.destroy()
    server.close()
  })
  return { session, asked: () => asked }
}
