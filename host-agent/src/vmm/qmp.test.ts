import assert from 'node:assert/strict'
import { mkdtemp, rm } from 'node:fs/promises'
import net from 'node:net'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { after, test } from 'node:test'
import { passTime } from '@warren/kit/testing/pass-time'
import { Qmp } from './qmp.ts'

const folder = await mkdtemp(path.join(tmpdir(), 'warren-qmp-'))
after(() => rm(folder, { recursive: true }))
let count = 0

type Command = { execute: string; id: number; arguments?: object }

/** A monitor that replies with what `answer` returns, split into two writes. */
async function startMonitor(answer: (command: Command, socket: net.Socket) => object | undefined, delayMs = 0) {
  const file = path.join(folder, `m${count++}.sock`)
  const server = net.createServer((socket) => {
    socket.write('{"QMP": {"version": {}, "capabilities": []}}\r\n')
    let held = ''
    socket.on('data', (chunk) => {
      held += chunk
      let text = ''
      for (let end = held.indexOf('\n'); end !== -1; end = held.indexOf('\n')) {
        const command = JSON.parse(held.slice(0, end)) as Command
        held = held.slice(end + 1)
        const reply = command.execute === 'qmp_capabilities' ? { return: {} } : answer(command, socket)
        if (!reply) continue
        text += `{"event":"NOISE"}\r\n${JSON.stringify({ ...reply, id: command.id })}\r\n`
      }
      socket.write(text.slice(0, 10))
      setImmediate(() => socket.write(text.slice(10)))
    })
    socket.on('error', () => {})
  })
  void passTime(delayMs, 'QEMU creates its socket some time after it is started').then(() => server.listen(file))
  after(() => server.close())
  return file
}

const soon = () => AbortSignal.timeout(5_000)

test('the client waits for the socket, and matches split replies to their commands among events', async () => {
  const file = await startMonitor((command) => ({ return: { was: command.execute, got: command.arguments } }), 30)

  const qmp = await Qmp.connect(file, soon())
  const events: string[] = []
  qmp.onEvent = (event) => events.push(event)

  assert.deepEqual(await Promise.all([qmp.run('stop'), qmp.run('cont', { fast: true })]), [
    { was: 'stop' },
    { was: 'cont', got: { fast: true } },
  ])
  assert.deepEqual(events, ['NOISE', 'NOISE'])
  qmp.close()
})

test('an error has the description that QEMU gave', async () => {
  const qmp = await Qmp.connect(await startMonitor(() => ({ error: { class: 'X', desc: 'no such device' } })), soon())

  await assert.rejects(qmp.run('device_del'), /QEMU: no such device/)
  qmp.close()
})

test('when QEMU exits, every command under way fails and `closed` settles', async () => {
  const file = await startMonitor((_command, socket) => void socket.destroy())
  const qmp = await Qmp.connect(file, soon())

  await assert.rejects(qmp.run('quit'), /connection to QEMU ended/)
  await qmp.closed
  await assert.rejects(qmp.run('cont'), /connection to QEMU ended/)
})

test('a command without a reply fails after its time limit', async () => {
  const qmp = await Qmp.connect(await startMonitor(() => undefined), soon())

  await assert.rejects(qmp.run('stop', undefined, 30), /did not answer stop within 30 ms/)
  qmp.close()
})

test('a peer that does not speak QMP is disconnected', async () => {
  const qmp = await Qmp.connect(await startMonitor((_command, socket) => void socket.write('hello\n')), soon())

  await assert.rejects(qmp.run('stop'), /connection to QEMU ended/)
})

test('connecting to a socket that never appears ends with the signal', async () => {
  await assert.rejects(Qmp.connect(path.join(folder, 'never.sock'), AbortSignal.timeout(30)))
})
