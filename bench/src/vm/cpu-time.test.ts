import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { test } from 'node:test'
import { parseStat, readEndedChildrenCpuMs, readWarrenCpuMs } from './cpu-time.ts'

const BUSY = 'i=0; while [ $i -lt 300000 ]; do i=$((i + 1)); done'

test('the fields of a process are found whatever its program is called', () => {
  const fields = 'S 7 7 7 0 -1 4194304 120 0 0 0 12 3 45 6 20 0 1 0 100'
  assert.deepEqual(parseStat(`41 (a) b (c) ${fields}\n`), { pid: 41, parent: 7, ownMs: 150, endedChildrenMs: 510 })
})

test('the time of a tree includes programs that have ended below it', (t) => {
  const dataDir = mkdtempSync(path.join(tmpdir(), 'warren-cpu-'))
  t.after(() => rmSync(dataDir, { recursive: true }))
  writeFileSync(path.join(dataDir, 'instance.json'), JSON.stringify({ pid: process.pid }))
  const before = { tree: readWarrenCpuMs(dataDir), ended: readEndedChildrenCpuMs() }

  // The busy shell is the child of a child.
  spawnSync('sh', ['-c', `sh -c '${BUSY}'; true`])

  const ended = readEndedChildrenCpuMs() - before.ended
  assert.ok(ended > 0)
  assert.ok(readWarrenCpuMs(dataDir) - before.tree >= ended)
})
