/** Real processes in real cgroups. */
import assert from 'node:assert/strict'
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import path from 'node:path'
import { type TestContext, test } from 'node:test'
import { type Cgroups, openCgroups } from '../cgroups/cgroups.ts'
import { findCgroupLayout } from '../cgroups/layout.ts'
import { makeFolder } from '../images/testing.ts'
import { randomInstance, skipReason } from '../net/testing/host.ts'
import { findVmmProcesses, removeStrays } from './strays.ts'

const layout = await findCgroupLayout()
const skip = skipReason || (layout === undefined && 'needs cgroups with the cpu and memory controllers')
/** As a QEMU process that a guest has taken over could call itself. */
const OTHER_NAME = 'kworker/0:1'

type Instance = { config: { runDir: string }; cgroups: Cgroups }

async function makeInstance(t: TestContext): Promise<Instance> {
  const cgroups = await openCgroups(layout!, randomInstance()) // Tests are skipped without it.
  t.after(async () => {
    await removeStrays({ config, cgroups }, () => false)
    await cgroups.close()
  })
  const config = { runDir: await makeFolder(t) }
  return { config, cgroups }
}

/** A VMM: a process in its cgroup that has changed its command line, and the folder of its sockets. */
async function startVmm(t: TestContext, { config, cgroups }: Instance, id: string): Promise<ChildProcess> {
  const { procs } = await cgroups.create(id, { memoryBytes: 256 * 1024 ** 2, threads: 10 })
  const child = spawn(process.execPath, [
    '-e',
    `process.title = '${OTHER_NAME}'; console.log(); setInterval(() => {}, 1000)`,
  ])
  t.after(() => child.kill('SIGKILL'))
  for (const file of procs) writeFileSync(file, `${child.pid}`)
  await once(child.stdout!, 'data')
  mkdirSync(path.join(config.runDir, id))
  return child
}

test('a stray that changed its command line is found and killed, and one that is needed stays', { skip }, async (t) => {
  const instance = await makeInstance(t)
  const [stray, needed] = ['0123456789abcdef', 'fedcba9876543210'] as const
  const [strayProcess, neededProcess] = [await startVmm(t, instance, stray), await startVmm(t, instance, needed)]
  assert.equal(readFileSync(`/proc/${strayProcess.pid}/cmdline`, 'utf8').replaceAll('\0', ''), OTHER_NAME)
  const exited = once(strayProcess, 'exit')

  const removed = await removeStrays(instance, (id) => id === needed)

  assert.deepEqual(removed, [stray])
  assert.deepEqual(await exited, [null, 'SIGKILL'])
  assert.equal(neededProcess.signalCode, null)
  assert.deepEqual(await instance.cgroups.list(), [needed])
  assert.deepEqual(
    [stray, needed].map((id) => existsSync(path.join(instance.config.runDir, id))),
    [false, true],
  )
  assert.deepEqual(await findVmmProcesses(instance), [{ pid: neededProcess.pid, uid: 0, id: needed }])
})

test('processes of another instance are not touched, whatever they call themselves', { skip }, async (t) => {
  const [own, other] = [await makeInstance(t), await makeInstance(t)]
  const id = '0123456789abcdef'
  const process = await startVmm(t, other, id)
  const named = `${own.config.runDir}/${id}/qmp.sock`
  const outside = spawn('sleep', ['60'], { argv0: `qemu-system-x86_64 ${named}` })
  t.after(() => outside.kill('SIGKILL'))
  await once(outside, 'spawn')

  assert.deepEqual(await removeStrays(own, () => false), [])

  assert.deepEqual([process.signalCode, outside.signalCode], [null, null])
  assert.deepEqual(await other.cgroups.list(), [id])
})

test('several processes of one VMM, and sockets without a process, are removed too', { skip }, async (t) => {
  const instance = await makeInstance(t)
  const id = 'base-0123'
  const first = await startVmm(t, instance, id)
  const second = spawn('sleep', ['60'])
  t.after(() => second.kill('SIGKILL'))
  await once(second, 'spawn')
  const { procs } = await instance.cgroups.create(id, { memoryBytes: 256 * 1024 ** 2, threads: 10 })
  for (const file of procs) writeFileSync(file, `${second.pid}`)
  mkdirSync(path.join(instance.config.runDir, 'verify-4567'))
  mkdirSync(path.join(instance.config.runDir, 'netd'))
  const exits = Promise.all([once(first, 'exit'), once(second, 'exit')])

  const removed = await removeStrays(instance, () => false)

  assert.deepEqual(removed, [id, 'verify-4567'])
  await exits
  assert.deepEqual(await instance.cgroups.list(), [])
  assert.ok(existsSync(path.join(instance.config.runDir, 'netd')))
})
