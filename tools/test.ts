/**
 * `npm test`: runs every check and every test. With arguments it runs only those test files and no checks:
 * `npm test -- control-plane/src/http/*.test.ts`.
 *
 * 1. Whatever killed runs left on the machine is removed (test-run/leftovers.ts).
 * 2. The speed of the machine is measured; time limits of tests grow with it (test-run/measure-slowness.ts).
 * 3. Everything below sees only programs that the set-up installs (test-run/search-path.ts).
 * 4. The image of some VM stories is built while checks and other tests run (test-run/devbox.ts).
 * 5. At the end the slowest files, everything skipped, what the Warrens of failed files logged, and what the tests left on the
 *    machine are listed. With CI=true leftovers are a failure, and so is a skip that allowed-skips.ts does not list.
 */
import { type ChildProcess, spawn } from 'node:child_process'
import { globSync, readFileSync } from 'node:fs'
import { availableParallelism, homedir } from 'node:os'
import path from 'node:path'
import { run as runTests } from 'node:test'
import { spec } from 'node:test/reporters'
import { startTestPostgres, TEST_POSTGRES_VARIABLE } from '@warren/kit/postgres/testing'
import { LEDGER_VARIABLE } from '@warren/kit/testing/ledger'
import { SLOWNESS_VARIABLE } from '@warren/kit/testing/slowness'
import { WARNINGS_VARIABLE } from '@warren/kit/testing/warnings'
import { buildDevbox, DEVBOX, DEVBOX_VARIABLE } from './test-run/devbox.ts'
import { findDeadRuns, removeTestRun, startTestRun, warningsFolderOf } from './test-run/leftovers.ts'
import { measureSlowness } from './test-run/measure-slowness.ts'
import { RunReport } from './test-run/report.ts'
import { makeSearchPath } from './test-run/search-path.ts'

const ROOT = path.resolve(import.meta.dirname, '..')
/** Of one test, unless it has its own; for a quiet machine. */
const TEST_LIMIT_MS = 300_000
/** The exit status by which a check says that it cannot run on this machine. */
const SKIPPED = 77

const isCi = process.env.CI === 'true'
const canRunVms = process.getuid?.() === 0 && process.arch === 'x64'
const cacheDir = path.join(process.env.XDG_CACHE_HOME || path.join(homedir(), '.cache'), 'warren')
const stopping = new AbortController()
let running: ChildProcess | undefined

for (const dead of findDeadRuns()) {
  const removed = await removeTestRun(dead)
  process.stdout.write(`removed what a killed test run left: ${[dead.folder, ...removed].join('\n  ')}\n`)
}
const { slowness, roundMs } = await measureSlowness()
process.stdout.write(`time limits × ${slowness} (the speed test took ${roundMs.toFixed(0)} ms)\n`)

const testRun = startTestRun()
const report = new RunReport(ROOT, warningsFolderOf(testRun))
process.env.TMPDIR = testRun.folder
process.env[LEDGER_VARIABLE] = testRun.ledger
process.env[WARNINGS_VARIABLE] = warningsFolderOf(testRun)
process.env[SLOWNESS_VARIABLE] = String(slowness)
const bin = path.join(testRun.folder, 'bin')
process.env.PATH = makeSearchPath(ROOT, bin, process.env, path.join(cacheDir, 'test-tools/bin')) ?? process.env.PATH

for (const signal of ['SIGINT', 'SIGTERM'] as const) {
  process.on(signal, () => {
    running?.kill(signal)
    stopping.abort()
  })
}
process.exitCode = await main().catch((error) => {
  process.stderr.write(`${error.stack}\n`)
  return 1
})
const left = await removeTestRun(testRun)
if (left.length > 0) {
  process.stderr.write(`\nthe tests left (removed now):\n  ${left.join('\n  ')}\n`)
  if (isCi) process.exitCode = 1
}
process.exit()

/** Returns the exit status. */
async function main(): Promise<number> {
  const given = process.argv.slice(2)
  const { first, last } = orderFiles(given.length > 0 ? given : globSync('{*/src,tools}/**/*.test.ts', { cwd: ROOT }))
  let devbox: ReturnType<typeof buildDevbox> | undefined
  if (last.length > 0 && canRunVms) {
    const outcome = path.join(testRun.folder, 'devbox')
    process.env[DEVBOX_VARIABLE] = outcome
    devbox = buildDevbox(ROOT, cacheDir, outcome)
  }
  try {
    if (given.length === 0 && !(await runChecks())) return 1
    const postgres = await startTestPostgres()
    process.env[TEST_POSTGRES_VARIABLE] = postgres.url
    try {
      await runFiles([...first, ...last])
    } finally {
      await postgres.stop()
    }
  } finally {
    devbox?.stop()
  }
  process.stdout.write(report.render())
  const forbidden = report.forbiddenSkips()
  if (isCi && forbidden.length > 0) {
    process.stderr.write(`\n${forbidden.length} tests were skipped on a machine of CI; see MISSING above\n`)
  }
  const hasFailed = report.failures > 0 || stopping.signal.aborted || (isCi && forbidden.length > 0)
  return hasFailed ? 1 : 0
}

/** Files that use the image of devbox come last, so that it is built meanwhile. */
function orderFiles(files: string[]): { first: string[]; last: string[] } {
  const usesDevbox = (file: string) =>
    file.startsWith('e2e/') && readFileSync(path.resolve(ROOT, file), 'utf8').includes(`'${DEVBOX}'`)
  const sorted = files.filter((file) => !file.includes('node_modules')).sort()
  return { first: sorted.filter((file) => !usesDevbox(file)), last: sorted.filter(usesDevbox) }
}

async function runChecks(): Promise<boolean> {
  return (
    (await check('format and lint', 'sh', ['tools/biome.sh', 'check', '.'], 'npm run fix repairs most findings')) &&
    (await check('types', process.execPath, ['node_modules/typescript/bin/tsc', '--noEmit'])) &&
    (await check('wording and references', process.execPath, ['tools/check-text.ts'])) &&
    (await check('generated docs', process.execPath, ['tools/generate-docs.ts', '--check'])) &&
    (await check('guest agent', 'sh', ['tools/rust-tests.sh', 'guest-agent'])) &&
    (await check('jail', 'sh', ['tools/rust-tests.sh', 'jail'])) &&
    (await check('bucket mount', 'sh', ['tools/rust-tests.sh', 'bucket-mount'])) &&
    (await check('native VMM', 'sh', ['tools/rust-tests.sh', 'native-vmm']))
  )
}

/** Returns false if it failed. */
async function check(name: string, command: string, args: string[], hint = ''): Promise<boolean> {
  const startedAt = performance.now()
  const code = await runProgram(command, args)
  const seconds = ((performance.now() - startedAt) / 1000).toFixed(1)
  if (code === SKIPPED) {
    report.skips.push({ file: args[0]!, test: name, reason: 'see its output above' })
    return true
  }
  if (code !== 0) process.stderr.write(`\n${name}: failed after ${seconds} s${hint === '' ? '' : `; ${hint}`}\n`)
  else process.stdout.write(`${name}: ok (${seconds} s)\n`)
  return code === 0
}

function runProgram(command: string, args: string[]): Promise<number> {
  const child = spawn(command, args, { cwd: ROOT, stdio: 'inherit' })
  running = child
  return new Promise((resolve, reject) => {
    child.once('error', reject)
    child.once('exit', (code) => resolve(code ?? 1))
  })
}

function runFiles(files: string[]): Promise<void> {
  const events = runTests({
    files: files.map((file) => path.resolve(ROOT, file)),
    cwd: ROOT,
    concurrency: Math.max(availableParallelism(), 2),
    timeout: TEST_LIMIT_MS * slowness,
    signal: stopping.signal,
  })
  events.on('data', (event) => report.add(event))
  const output = events.compose(spec)
  output.pipe(process.stdout, { end: false })
  return new Promise((resolve, reject) => output.once('end', resolve).once('error', reject))
}
