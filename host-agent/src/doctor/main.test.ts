import assert from 'node:assert/strict'
import { test } from 'node:test'
import { fileURLToPath } from 'node:url'
import { AS_ORDINARY_USER } from '@warren/kit/testing/ordinary-user'
import { runCommand } from '../run-command.ts'
import { doctor } from './main.ts'

const MAIN = fileURLToPath(new URL('./main.ts', import.meta.url))
/** Any free port, so that a program on the default ports does not fail these tests. */
const FREE_PORTS = { WARREN_PORT: '0', WARREN_METRICS_PORT: '0' }

const runDoctor = (...args: string[]) =>
  runCommand(process.execPath, [MAIN, ...args], { env: { ...process.env, ...FREE_PORTS } })

async function runInProcess(args: string[], isTTY: boolean, env: NodeJS.ProcessEnv = {}) {
  const printed = { out: '', err: '' }
  const exitCode = await doctor(args, {
    env: { ...process.env, NO_COLOR: undefined, ...FREE_PORTS, ...env },
    stdout: { isTTY, write: (text) => (printed.out += text) },
    stderr: { write: (text) => (printed.err += text) },
  })
  return { ...printed, exitCode }
}

test('the doctor prints one line per check and a summary; --json lists the same checks', async () => {
  const [text, json] = await Promise.all([runDoctor(), runDoctor('--json')])

  const outcomes: { name: string; needed: string; ok: boolean; fix?: string }[] = JSON.parse(json.stdout)
  // The columns are as wide as their content: where nothing is missing, the first one is narrower.
  const lines = [...text.stdout.matchAll(/^(ok|missing) +(.*)$/gm)]
  assert.deepEqual(
    lines.map(([, state]) => state === 'ok'),
    outcomes.map((outcome) => outcome.ok),
  )
  for (const [index, outcome] of outcomes.entries()) {
    assert.ok(lines[index]?.[2]?.startsWith(outcome.name), outcome.name)
    assert.equal(outcome.fix === undefined, outcome.ok, outcome.name)
  }
  assert.equal(
    text.stdout.trimEnd().split('\n').length,
    outcomes.length + 2,
    'one line per check, an empty line, the summary',
  )
  assert.match(text.stdout, /\n\n\d+ of \d+ checks ok.*\n$/)
  const broken = outcomes.some((outcome) => !outcome.ok && outcome.needed === 'required')
  assert.equal(text.exitCode, broken ? 1 : 0)
  assert.equal(json.exitCode, text.exitCode)
})

test('the exit status is 1 if a required check fails', async () => {
  const { out, exitCode } = await runInProcess([], false, { WARREN_PORT: 'none' })

  assert.match(out, /^missing +API port +WARREN_PORT=none is not a port number; fix: set WARREN_PORT/m)
  assert.equal(exitCode, 1)
})

test('colour is used on terminals only, and not with NO_COLOR', async () => {
  const [terminal, file, plain] = await Promise.all([
    runInProcess([], true),
    runInProcess([], false),
    runInProcess([], true, { NO_COLOR: '1' }),
  ])

  assert.ok(terminal.out.includes('\x1b['))
  assert.ok(!file.out.includes('\x1b['))
  assert.ok(!plain.out.includes('\x1b['))
})

test('an unknown option or argument is named, with exit status 2, and no check runs', async () => {
  for (const option of ['--fix', 'kvm']) {
    const { out, err, exitCode } = await runInProcess([option], false)

    assert.equal(exitCode, 2)
    assert.equal(out, '')
    assert.ok(err.startsWith('warren doctor: ') && err.includes(option), err)
  }
})

test('the help lists the options and the environment variables', async () => {
  const { out, exitCode } = await runInProcess(['--help'], false)

  assert.equal(exitCode, 0)
  assert.match(out, /--json[\s\S]*WARREN_METRICS_PORT/)
})

test('the doctor also works without root', { skip: !AS_ORDINARY_USER && 'needs root' }, async () => {
  const [command, ...args] = [...AS_ORDINARY_USER!, process.execPath, MAIN]

  const { stdout, stderr } = await runCommand(command!, args, { env: { ...process.env, ...FREE_PORTS } })

  assert.match(stdout, /^missing +user +not root: only root .*\(recommended\); fix: /m, stderr)
  assert.match(stdout, /^ok +kvm +not usable: no permission to open \/dev\/kvm|^ok +kvm +(runs|not usable)/m)
  assert.doesNotMatch(stdout, /the check itself failed/)
})
