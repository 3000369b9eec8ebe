/**
 * `npm test`: runs every check and every test. With arguments it runs only those test files and no checks:
 * `npm test -- control-plane/src/http/*.test.ts`.
 */
import { type ChildProcess, spawn } from 'node:child_process'
import { globSync } from 'node:fs'
import { availableParallelism } from 'node:os'
import path from 'node:path'
import { startTestPostgres, TEST_POSTGRES_VARIABLE } from '@warren/kit/postgres/testing'

const ROOT = path.resolve(import.meta.dirname, '..')
const files = process.argv.slice(2)
let running: ChildProcess | undefined

if (files.length === 0) {
  await check('format and lint', 'sh', ['tools/biome.sh', 'check', '.'], 'npm run fix repairs most findings')
  await check('types', process.execPath, ['node_modules/typescript/bin/tsc', '--noEmit'])
  await check('wording and references', process.execPath, ['tools/check-text.ts'])
  await check('generated docs', process.execPath, ['tools/generate-docs.ts', '--check'])
  await check('guest agent', 'sh', ['tools/guest-agent-tests.sh'])
}

const postgres = await startTestPostgres()
let exitCode = 1
// The tests receive the signal too. This process waits for them and then stops the database.
for (const signal of ['SIGINT', 'SIGTERM'] as const) process.on(signal, () => running?.kill(signal))
try {
  const tests = files.length > 0 ? files : globSync('{*/src/**,tools}/*.test.ts', { cwd: ROOT }).sort()
  exitCode = await run(
    process.execPath,
    ['--test', `--test-concurrency=${Math.max(availableParallelism(), 2)}`, '--test-timeout=300000', ...tests],
    { [TEST_POSTGRES_VARIABLE]: postgres.url },
  )
} finally {
  await postgres.stop()
}
process.exit(exitCode)

async function check(name: string, command: string, args: string[], hint = ''): Promise<void> {
  const startedAt = performance.now()
  const code = await run(command, args)
  const seconds = ((performance.now() - startedAt) / 1000).toFixed(1)
  if (code !== 0) {
    process.stderr.write(`\n${name}: failed after ${seconds} s${hint === '' ? '' : `; ${hint}`}\n`)
    process.exit(code)
  }
  process.stdout.write(`${name}: ok (${seconds} s)\n`)
}

function run(command: string, args: string[], env: NodeJS.ProcessEnv = {}): Promise<number> {
  const child = spawn(command, args, { cwd: ROOT, stdio: 'inherit', env: { ...process.env, ...env } })
  running = child
  return new Promise((resolve, reject) => {
    child.once('error', reject)
    child.once('exit', (code) => resolve(code ?? 1))
  })
}
