import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { appendFileSync, mkdirSync, mkdtempSync, openSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { type TestContext, test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { LOG_MAX_BYTES, limitLog, limitLogs, readLogTail } from './log.ts'

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
  assert.equal(limitLog(file), true)
  assert.equal(statSync(file).size, 0)
  await flood()
  assert.equal(statSync(file).size, LOG_MAX_BYTES + 1)
  assert.equal(limitLog(path.join(path.dirname(file), 'missing')), false)
})

// At one cut in five seconds, which is as good as none, thirty of them take more than two minutes.
test('a flooded log is cut many times, and others stay as they are', { timeout: 60_000 }, async (t) => {
  const dataDir = path.dirname(fileOf(t))
  const [flooded, calm] = ['bodies/flooded', 'bases/calm'].map((name) => {
    mkdirSync(path.join(dataDir, name), { recursive: true })
    return path.join(dataDir, name, 'qemu.log')
  }) as [string, string]
  writeFileSync(calm, 'one\n')
  const stop = new AbortController()
  const limiting = limitLogs(dataDir, stop.signal)

  for (let round = 0; round < 30; round++) {
    appendFileSync(flooded, Buffer.alloc(LOG_MAX_BYTES + 1))
    await until(() => statSync(flooded).size === 0, 'the log is cut')
  }

  assert.equal(await readLogTail(calm), 'one')
  stop.abort()
  await limiting
})

function fileOf(t: TestContext): string {
  const folder = mkdtempSync(path.join(tmpdir(), 'qemu-log-'))
  t.after(() => rmSync(folder, { recursive: true }))
  return path.join(folder, 'qemu.log')
}
