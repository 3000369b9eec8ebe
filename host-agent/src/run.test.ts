import assert from 'node:assert/strict'
import { mkdtemp, readFile, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { run, runOrThrow, STDERR_MAX_BYTES, STDOUT_MAX_BYTES } from './run.ts'

test('output, errors and exit code come back separately', async () => {
  const result = await run('sh', ['-c', 'echo out; echo err >&2; exit 3'])

  assert.deepEqual(result, { stdout: 'out\n', stderr: 'err\n', exitCode: 3 })
})

test('input is what the command reads, and its end is seen', async () => {
  const { stdout } = await run('cat', [], { input: 'table ip x {}' })

  assert.equal(stdout, 'table ip x {}')
})

test('a command that does not read a long input is judged by its exit code', async () => {
  const { exitCode } = await run('true', [], { input: Buffer.alloc(4 * 1024 ** 2) })

  assert.equal(exitCode, 0)
})

test('the given environment replaces the own one', async () => {
  const { stdout } = await run('/usr/bin/env', [], { env: { ONLY: 'this' } })

  assert.equal(stdout, 'ONLY=this\n')
})

test('death by a signal is 128 and its number', async () => {
  const { exitCode } = await run('sh', ['-c', 'kill -SEGV $$'])

  assert.equal(exitCode, 128 + 11)
})

test('a command that is not there is named, and the cause is kept', async () => {
  await assert.rejects(run('warren-no-such-command', []), (error: Error) => {
    assert.match(error.message, /could not start warren-no-such-command/)
    assert.equal((error.cause as NodeJS.ErrnoException).code, 'ENOENT')
    return true
  })
})

test('a command that must succeed fails with its line, exit code and the end of its stderr', async () => {
  const running = runOrThrow('sh', ['-c', 'seq 1 9 >&2; exit 4'])

  await assert.rejects(running, { message: 'sh -c seq 1 9 >&2; exit 4 failed with exit code 4: 5\n6\n7\n8\n9' })
})

test('an abort kills the command with its helpers', async (t) => {
  const folder = await mkdtemp(join(tmpdir(), 'warren-run-'))
  t.after(() => rm(folder, { recursive: true }))
  const stop = new AbortController()

  const running = run('sh', ['-c', `sleep 60 & echo $! > ${folder}/pid; wait`], { signal: stop.signal })
  const helper = await until(async () => {
    const text = await readFile(join(folder, 'pid'), 'utf8').catch(() => '')
    return text.endsWith('\n') ? text.trim() : undefined
  })
  stop.abort(new Error('the host agent stops'))

  await assert.rejects(running, (error: Error) => {
    assert.equal(error.message, 'sh was aborted')
    assert.equal((error.cause as Error).message, 'the host agent stops')
    return true
  })
  await until(() => isGone(helper), 'the helper has ended')
})

test('a signal that has fired already starts nothing', async () => {
  await assert.rejects(run('true', [], { signal: AbortSignal.abort() }), { message: 'true was aborted' })
})

test('a helper that left the group and holds the pipes cannot outwait the time limit', async () => {
  const running = run('sh', ['-c', 'setsid sleep 5 & exit 0'], { timeoutMs: 300 })

  await assert.rejects(running, { message: 'sh timed out after 300 ms' })
})

test('endless output is stopped', async () => {
  await assert.rejects(run('yes', []), { message: `yes printed more than ${STDOUT_MAX_BYTES} bytes` })
})

test('of endless errors the end is kept', async () => {
  const { stderr } = await run('sh', ['-c', 'seq 1 20000 >&2; echo last words >&2'])

  assert.equal(stderr.length, STDERR_MAX_BYTES)
  assert.ok(stderr.endsWith('20000\nlast words\n'))
})

/** A killed process is a zombie until its new parent reaps it; that counts as gone. */
async function isGone(pid: string): Promise<boolean> {
  const status = await readFile(`/proc/${pid}/status`, 'utf8').catch(() => 'State:\tZ')
  return /^State:\s+[ZX]/m.test(status)
}
