import assert from 'node:assert/strict'
import { test } from 'node:test'
import { fileURLToPath } from 'node:url'
import { runCommand } from '../run-command.ts'
import { doctor } from './main.ts'

const MAIN = fileURLToPath(new URL('./main.ts', import.meta.url))
/** Any free port: whether another program holds the usual ones is not what is tested here. */
const FREE_PORTS = { WARREN_PORT: '0', WARREN_METRICS_PORT: '0' }

const runDoctor = (...args: string[]) =>
  runCommand(process.execPath, [MAIN, ...args], { env: { ...process.env, ...FREE_PORTS } })

async function doctorInside(args: string[], isTTY: boolean, env: NodeJS.ProcessEnv = {}) {
  const said = { out: '', err: '' }
  const exitCode = await doctor(args, {
    env: { ...process.env, NO_COLOR: undefined, ...FREE_PORTS, ...env },
    stdout: { isTTY, write: (text) => (said.out += text) },
    stderr: { write: (text) => (said.err += text) },
  })
  return { ...said, exitCode }
}

test('the doctor prints a line for each check and ends with a summary, as json it lists the same checks', async () => {
  const [text, json] = await Promise.all([runDoctor(), runDoctor('--json')])

  const outcomes: { name: string; needed: string; ok: boolean; fix?: string }[] = JSON.parse(json.stdout)
  const lines = text.stdout.split('\n').filter((line) => /^(ok|missing) /.test(line))
  assert.deepEqual(
    lines.map((line) => line.slice(0, 7).trim() === 'ok'),
    outcomes.map((outcome) => outcome.ok),
  )
  for (const [index, outcome] of outcomes.entries()) {
    assert.ok(lines[index]?.slice(8).startsWith(outcome.name), outcome.name)
    assert.equal(outcome.fix === undefined, outcome.ok, outcome.name)
  }
  assert.match(text.stdout, /\n\n\d+ of \d+ checks ok.*\n$/)
  const broken = outcomes.some((outcome) => !outcome.ok && outcome.needed === 'required')
  assert.equal(text.exitCode, broken ? 1 : 0)
  assert.equal(json.exitCode, text.exitCode)
})

test('a required thing that is missing makes the exit status 1', async () => {
  const { out, exitCode } = await doctorInside([], false, { WARREN_PORT: 'none' })

  assert.match(out, /^missing API port +WARREN_PORT=none is no port\n +fix: set WARREN_PORT/m)
  assert.equal(exitCode, 1)
})

test('colour is for terminals only, and not with NO_COLOR', async () => {
  const [terminal, file, plain] = await Promise.all([
    doctorInside([], true),
    doctorInside([], false),
    doctorInside([], true, { NO_COLOR: '1' }),
  ])

  assert.ok(terminal.out.includes('\x1b['))
  assert.ok(!file.out.includes('\x1b['))
  assert.ok(!plain.out.includes('\x1b['))
})

test('an option that is not known is refused by name, with exit status 2 and no checks', async () => {
  for (const option of ['--fix', 'kvm']) {
    const { out, err, exitCode } = await doctorInside([option], false)

    assert.equal(exitCode, 2)
    assert.equal(out, '')
    assert.ok(err.startsWith('doctor: ') && err.includes(`'${option}'`), err)
  }
})

test('help tells the options and what is read from the environment', async () => {
  const { out, exitCode } = await doctorInside(['--help'], false)

  assert.equal(exitCode, 0)
  assert.match(out, /--json[\s\S]*WARREN_METRICS_PORT/)
})

test('an ordinary user gets a full report too', async (t) => {
  if (process.getuid?.() !== 0) return t.skip('this test is run by an ordinary user already')
  const asNobody = ['--reuid', '65534', '--regid', '65534', '--clear-groups', process.execPath]
  const readable = await runCommand('setpriv', [...asNobody, '--version'])
  if (readable.exitCode !== 0) return t.skip('the checkout is not readable by other users')

  const { stdout, stderr } = await runCommand('setpriv', [...asNobody, MAIN], {
    env: { ...process.env, ...FREE_PORTS },
  })

  assert.match(stdout, /^missing user +an ordinary user: only root .*\(recommended\)$/m, stderr)
  assert.match(stdout, /^ok +kvm +not usable: no permission to open \/dev\/kvm$|^ok +kvm +(runs|not usable)/m)
  assert.doesNotMatch(stdout, /the check itself failed/)
})
