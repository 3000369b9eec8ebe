import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, openSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { type TestContext, test } from 'node:test'
import { LOG_MAX_BYTES, limitLog, readLogTail } from './log.ts'

test('the last lines of a log of any length are read', async (t) => {
  const file = fileOf(t)

  assert.equal(await readLogTail(file), 'its log is empty')
  writeFileSync(file, 'one\ntwo\nthree\nfour\n')
  assert.equal(await readLogTail(file), 'two | three | four')
  writeFileSync(file, `${'x'.repeat(10_000_000)}\nlast\n`)
  assert.match(await readLogTail(file), /^x+ \| last$/)
})

test('a log that is too long is cut while it is written, and the program continues at its new end', async (t) => {
  const file = fileOf(t)
  const flood = async () => {
    const log = openSync(file, 'a')
    const program = spawn('head', ['-c', `${LOG_MAX_BYTES + 1}`, '/dev/zero'], { stdio: ['ignore', log, 'inherit'] })
    await once(program, 'exit')
  }

  await flood()
  await limitLog(file)
  assert.equal(statSync(file).size, 0)
  await flood()
  assert.equal(statSync(file).size, LOG_MAX_BYTES + 1)
  await limitLog(path.join(path.dirname(file), 'missing'))
})

function fileOf(t: TestContext): string {
  const folder = mkdtempSync(path.join(tmpdir(), 'qemu-log-'))
  t.after(() => rmSync(folder, { recursive: true }))
  return path.join(folder, 'qemu.log')
}
