/** Guests that are stopped for the disk of the host. The monitor is a stand-in that keeps QEMU's run state. */
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { mkdtemp, rm } from 'node:fs/promises'
import net from 'node:net'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { type TestContext, test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import type { Deps } from '../deps.ts'
import { findProcess } from './process.ts'
import { Qmp } from './qmp.ts'
import type { VmmRecord } from './record.ts'
import { Vmm } from './vmm.ts'

type Command = { execute: string; id: number }

class Monitor {
  status = 'running'
  readonly commands: string[] = []
  /** Commands to which it does not reply, until `answer` is called. */
  readonly silent = new Set<string>()
  readonly #unanswered: (() => void)[] = []
  socket: net.Socket | undefined

  run({ execute, id }: Command): void {
    this.commands.push(execute)
    // As QEMU does it: `stop` changes the state only of a guest that runs.
    if (execute === 'stop' && this.status === 'running') this.status = 'paused'
    if (execute === 'cont') this.status = 'running'
    const reply = { return: execute === 'query-status' ? { status: this.status } : {}, id }
    const send = () => this.socket?.write(`${JSON.stringify(reply)}\n`)
    if (this.silent.has(execute)) this.#unanswered.push(send)
    else send()
  }

  answer(): void {
    this.silent.clear()
    for (const send of this.#unanswered.splice(0)) send()
  }

  meetDiskError(): void {
    this.status = 'io-error'
    this.socket?.write('{"event":"BLOCK_IO_ERROR"}\n')
  }

  count = (command: string): number => this.commands.filter((one) => one === command).length
}

async function startVmm(t: TestContext) {
  const folder = await mkdtemp(path.join(tmpdir(), 'warren-vmm-'))
  const monitor = new Monitor()
  const server = net.createServer((socket) => {
    monitor.socket = socket
    let held = ''
    socket.on('data', (chunk) => {
      const lines = (held + chunk).split('\n')
      held = lines.pop() ?? ''
      for (const line of lines) monitor.run(JSON.parse(line) as Command)
    })
    socket.on('error', () => {}) // The test is over.
  })
  await new Promise<void>((resolve) => server.listen(path.join(folder, 'monitor'), resolve))
  const child = spawn('sleep', ['infinity'])
  const qmp = await Qmp.connect(path.join(folder, 'monitor'), AbortSignal.timeout(5_000))
  t.after(async () => {
    qmp.close()
    server.close()
    child.kill('SIGKILL')
    await rm(folder, { recursive: true })
  })
  const record = { id: 'vmm', qemu: findProcess(child.pid!)! } as VmmRecord
  const vmm = new Vmm({ config: { runDir: folder }, log: { warn() {} } } as unknown as Deps, record, qmp)
  const isFrozen = () => /^State:\tT/m.test(readFileSync(`/proc/${child.pid}/status`, 'utf8'))
  return { monitor, vmm, isFrozen }
}

test('a guest that met a disk error and is held is not continued by the pause that takes over', async (t) => {
  const { monitor, vmm } = await startVmm(t)
  monitor.meetDiskError()
  assert.equal(await vmm.holdForDisk(), true)
  await vmm.pauseCpus()

  const before = monitor.count('query-status')
  await until(() => monitor.count('query-status') >= before + 3, 'it is looked at again')
  assert.equal(monitor.count('cont'), 0)

  await vmm.resumeCpus()
  assert.deepEqual([monitor.count('cont'), monitor.status, vmm.waitsForDisk], [1, 'running', false])
})

test('a pause that begins while the state of a guest is being read is not undone', async (t) => {
  const { monitor, vmm } = await startVmm(t)
  monitor.silent.add('query-status')
  monitor.meetDiskError()
  await until(() => monitor.count('query-status') === 1, 'its state is read')
  await vmm.pauseCpus()

  monitor.answer()
  await until(() => monitor.count('query-status') >= 4, 'it is looked at again')

  assert.equal(monitor.count('cont'), 0)
})

test('a guest that met a disk error continues when nothing holds it', async (t) => {
  const { monitor } = await startVmm(t)
  monitor.meetDiskError()
  await until(() => monitor.status === 'running', 'it continues')
})

test('a QEMU process that does not answer is stopped by the kernel until it is released', async (t) => {
  const { monitor, vmm, isFrozen } = await startVmm(t)
  monitor.silent.add('stop').add('cont')

  assert.equal(await vmm.holdForDisk(), true)
  await until(isFrozen, 'the process is stopped')
  await assert.rejects(vmm.releaseFromDisk(), { message: /^to continue the guest took more than/ })
  assert.equal(vmm.waitsForDisk, true)
  await until(isFrozen, 'the process is stopped again')

  monitor.answer()
  await vmm.releaseFromDisk()
  assert.equal(vmm.waitsForDisk, false)
  await until(() => !isFrozen(), 'the process continues')
})

test('an operation takes over from a hold, and is not held itself', async (t) => {
  const { monitor, vmm, isFrozen } = await startVmm(t)
  monitor.silent.add('stop')
  await vmm.holdForDisk()
  await until(isFrozen, 'the process is stopped')
  monitor.answer()

  await vmm.pauseCpus()
  await until(() => !isFrozen(), 'the process continues')
  assert.equal(await vmm.holdForDisk(), false)
  await vmm.releaseFromDisk()

  assert.deepEqual([monitor.count('cont'), monitor.status], [0, 'paused'])
})

test('a caller does not wait longer than its limit for an attempt to reach the guest that another one has begun', async (t) => {
  const { vmm } = await startVmm(t)
  const [patient, hasty] = [new AbortController(), new AbortController()]
  const first = vmm.channel(patient.signal) // The sockets of the guest never appear.
  const second = vmm.channel(hasty.signal)
  let isFirstSettled = false
  first.catch(() => (isFirstSettled = true))

  hasty.abort(new Error('too late'))

  await assert.rejects(second, { message: 'too late' })
  assert.equal(isFirstSettled, false)
  patient.abort(new Error('given up'))
  await assert.rejects(first, { message: 'given up' })
})
