import assert from 'node:assert/strict'
import { mkdtemp, readFile, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { runCommand, runCommandOrThrow, STDERR_MAX_BYTES, STDOUT_MAX_BYTES } from './run-command.ts'

test('stdout, stderr and exit code are returned separately', async () => {
  const result = await runCommand('sh', ['-c', 'echo out; echo err >&2; exit 3'])

  assert.deepEqual(result, { stdout: 'out\n', stderr: 'err\n', exitCode: 3 })
})

test('the command reads the input from stdin, which is then closed', async () => {
  const { stdout } = await runCommand('cat', [], { input: 'table ip x {}' })

  assert.equal(stdout, 'table ip x {}')
})

test('a command that exits without reading its input can succeed', async () => {
  const { exitCode } = await runCommand('true', [], { input: Buffer.alloc(4 * 1024 ** 2) })

  assert.equal(exitCode, 0)
})

test('the given environment replaces that of this process', async () => {
  const { stdout } = await runCommand('/usr/bin/env', [], { env: { ONLY: 'this' } })

  assert.equal(stdout, 'ONLY=this\n')
})

test('a command ended by signal n has the exit code 128+n', async () => {
  const { exitCode } = await runCommand('sh', ['-c', 'kill -SEGV $$'])

  assert.equal(exitCode, 128 + 11)
})

test('the error of a missing command names it and has the cause', async () => {
  await assert.rejects(runCommand('warren-no-such-command', []), (error: Error) => {
    assert.match(error.message, /failed to start warren-no-such-command/)
    assert.equal((error.cause as NodeJS.ErrnoException).code, 'ENOENT')
    return true
  })
})

test('runCommandOrThrow reports the command line, the exit code and the end of stderr', async () => {
  const running = runCommandOrThrow('sh', ['-c', 'seq 1 9 >&2; exit 4'])

  await assert.rejects(running, { message: 'sh -c seq 1 9 >&2; exit 4 failed with exit code 4: 5\n6\n7\n8\n9' })
})

test('an abort kills the command and its child processes', async (t) => {
  const folder = await mkdtemp(join(tmpdir(), 'warren-run-command-'))
  t.after(() => rm(folder, { recursive: true }))
  const stop = new AbortController()

  const running = runCommand('sh', ['-c', `sleep 60 & echo $! > ${folder}/pid; wait`], { signal: stop.signal })
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

test('with an aborted signal the command is not started', async () => {
  await assert.rejects(runCommand('true', [], { signal: AbortSignal.abort() }), { message: 'true was aborted' })
})

test('the timeout applies even if a process outside the group holds the pipes open', async () => {
  const running = runCommand('sh', ['-c', 'setsid sleep 5 & exit 0'], { timeoutMs: 300 })

  await assert.rejects(running, { message: 'sh timed out after 300 ms' })
})

test('a command with too much output is killed', async () => {
  await assert.rejects(runCommand('yes', []), { message: `yes printed more than ${STDOUT_MAX_BYTES} bytes` })
})

test('of a long stderr only the end is kept', async () => {
  const { stderr } = await runCommand('sh', ['-c', 'seq 1 20000 >&2; echo the end >&2'])

  assert.equal(stderr.length, STDERR_MAX_BYTES)
  assert.ok(stderr.endsWith('20000\nthe end\n'))
})

/** A killed process stays a zombie until its new parent reaps it; a zombie counts as gone. */
async function isGone(pid: string): Promise<boolean> {
  const status = await readFile(`/proc/${pid}/status`, 'utf8').catch(() => 'State:\tZ')
  return /^State:\s+[ZX]/m.test(status)
}
