/** `npm test` itself, with a test file that leaves a process and one that fails before its tests. */
import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { test } from 'node:test'
import { scaleLimit } from '@warren/kit/testing/slowness'

const RUNNER = path.resolve(import.meta.dirname, '../test.ts')
const LEAVES_A_PROCESS = `
import { spawn } from 'node:child_process'
import { test } from 'node:test'
test('passes', () => spawn('sleep', ['1000'], { detached: true, stdio: 'ignore' }).unref())
`

test('what tests leave on the machine is removed, listed, and with CI=true a failure', (t) => {
  const folder = mkdtempSync(path.join(tmpdir(), 'runner-'))
  t.after(() => rmSync(folder, { recursive: true, force: true }))
  const file = path.join(folder, 'leaves-a-process.test.mjs')
  writeFileSync(file, LEAVES_A_PROCESS)

  for (const [ci, expected] of [
    ['true', 1],
    ['false', 0],
  ] as const) {
    const { status, stdout, stderr } = runTests(folder, file, ci)

    assert.equal(status, expected, stdout + stderr)
    assert.match(stdout, /✔ passes/)
    const [, pid] = /the tests left \(removed now\):\n {2}process (\d+) sleep 1000/.exec(stderr) ?? assert.fail(stderr)
    assert.ok(hasExited(pid!))
  }
})

test('the reason why a file failed before its tests is at the end of the output', (t) => {
  const folder = mkdtempSync(path.join(tmpdir(), 'runner-'))
  t.after(() => rmSync(folder, { recursive: true, force: true }))
  const file = path.join(folder, 'throws.test.mjs')
  writeFileSync(file, `throw new Error('the disk of the test is full')`)

  const { status, stdout } = runTests(folder, file)

  assert.equal(status, 1)
  assert.match(
    stdout.slice(stdout.indexOf('failing tests:')),
    /throws\.test\.mjs failed outside of its tests:.*the disk of the test is full/s,
  )
})

/** Without NODE_TEST_CONTEXT, by which the inner runner would report to this one instead of printing. */
function runTests(folder: string, file: string, ci = 'false') {
  const { NODE_TEST_CONTEXT: _, ...inherited } = process.env
  return spawnSync(process.execPath, [RUNNER, file], {
    env: { ...inherited, CI: ci, TMPDIR: folder },
    encoding: 'utf8',
    timeout: scaleLimit(120_000),
  })
}

/** A zombie has exited as well: not every machine has an init that collects them. */
function hasExited(pid: string): boolean {
  const stat = `/proc/${pid}/stat`
  return !existsSync(stat) || readFileSync(stat, 'utf8').includes(') Z ')
}
