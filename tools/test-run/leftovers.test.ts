import assert from 'node:assert/strict'
import { execFileSync, spawn } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { appendFileSync, existsSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { type TestContext, test } from 'node:test'
import { recordInstance } from '@warren/kit/testing/ledger'
import { findCgroupLayout } from '../../host-agent/src/cgroups/layout.ts'
import { findDeadRuns, removeTestRun, startTestRun, type TestRun } from './leftovers.ts'

const skip = process.getuid?.() === 0 ? false : 'needs root'

/** Starts runs in a separate folder, where the runner of this test looks for none. */
function useFolder(t: TestContext): string {
  const folder = mkdtempSync(path.join(tmpdir(), 'leftovers-'))
  const before = process.env.TMPDIR
  process.env.TMPDIR = folder
  t.after(() => {
    if (before === undefined) delete process.env.TMPDIR
    else process.env.TMPDIR = before
    rmSync(folder, { recursive: true, force: true })
  })
  return folder
}

/** As the file says when the runner was killed: no process has that pid and start time. */
const markDead = ({ folder }: TestRun) =>
  writeFileSync(path.join(folder, 'runner.json'), JSON.stringify({ pid: process.pid, startedAt: '1' }))

test('a run is dead when its runner is, and only then', (t) => {
  const folder = useFolder(t)
  const live = startTestRun()
  const dead = startTestRun()
  mkdirSync(path.join(folder, 'warren-t-starting'))
  markDead(dead)

  assert.deepEqual(findDeadRuns(folder), [dead])
  assert.ok(existsSync(live.folder))
})

test('everything that a killed run left is removed, and nothing of another run', { skip }, async (t) => {
  useFolder(t)
  const [dead, other] = [startTestRun(), startTestRun()]
  markDead(dead)
  const [instance, foreign] = [randomBytes(4).toString('hex'), randomBytes(4).toString('hex')]
  for (const one of [instance, foreign]) recordInstance(one) // For the case that this test is killed.
  appendFileSync(dead.ledger, `${instance}\n`)
  const sleepIn = (run: TestRun) =>
    spawn('sleep', ['1000'], { env: { ...process.env, TMPDIR: run.folder }, stdio: 'ignore' })
  const [killed, kept] = [sleepIn(dead), sleepIn(other)]
  const [netns, keptNetns] = [`warren-${instance}-0`, `warren-${foreign}-0`]
  t.after(() => {
    kept.kill('SIGKILL')
    execFileSync('ip', ['netns', 'delete', keptNetns])
  })
  for (const name of [netns, keptNetns]) execFileSync('ip', ['netns', 'add', name])
  mkdirSync(`/run/warren-${instance}/sb-1`, { recursive: true })
  const layout = await findCgroupLayout()
  const cgroup = layout && path.join(layout.version === 2 ? layout.root : layout.memory, `warren-${instance}`)
  if (cgroup) mkdirSync(path.join(cgroup, 'sb-1'), { recursive: true })
  const small = path.join(dead.folder, 'small-disk')
  mkdirSync(small)
  execFileSync('mount', ['-t', 'tmpfs', 'small', small])

  const exited = once(killed, 'exit')
  const removed = await removeTestRun(dead)

  assert.deepEqual(await exited, [null, 'SIGKILL'])
  assert.deepEqual(
    removed.map((name) => name.replace(/ .*/, '')).sort(),
    ['process', 'mount', 'namespace', 'folder', ...(cgroup ? ['cgroup'] : [])].sort(),
  )
  assert.ok(!existsSync(dead.folder))
  for (const file of [`/run/netns/${netns}`, `/run/warren-${instance}`, cgroup]) assert.ok(!file || !existsSync(file))
  assert.ok(existsSync(`/run/netns/${keptNetns}`))
  assert.equal(kept.exitCode, null)
  assert.ok(existsSync(other.folder))
})
