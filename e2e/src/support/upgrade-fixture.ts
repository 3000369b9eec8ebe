/**
 * The back-up of a data directory that another version made: a paused sandbox, and one that ran when its machine was
 * switched off. It is made by that version's own code, from the history of this repository, and cached: with the memory of
 * its base it is too large to commit. docs/decisions/0028-upgrade-fixtures-from-history.md says why.
 */
import { execFile, execFileSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { existsSync, readFileSync } from 'node:fs'
import { mkdir, readdir, readFile, rename, rm, stat, utimes, writeFile } from 'node:fs/promises'
import { homedir } from 'node:os'
import path from 'node:path'
import { after } from 'node:test'
import { promisify } from 'node:util'
import { scaleLimit } from '@warren/kit/testing/slowness'
import { backUp } from './back-up.ts'
import { createDataDir, killProcesses, ROOT, startInstance, stop } from './instance.ts'
import { removeLeftovers } from './leftovers.ts'
import { processClient } from './process-client.ts'
import type { Release } from './releases.ts'
import { createSandbox, pauseSandbox, requestOk, runShell, type Target } from './sandboxes.ts'
import { VM_ENV, VM_READY_LIMIT_MS } from './vm-instance.ts'

const run = promisify(execFile)

const CACHE = path.join(process.env.XDG_CACHE_HOME || path.join(homedir(), '.cache'), 'warren/upgrade-fixtures')
/** Installing npm packages and building the guest agent. */
const SETUP_LIMIT_MS = scaleLimit(10 * 60_000)

/** Several checkouts may share the cache, each with its own state of this file. */
const UNUSED_MS = 7 * 24 * 60 * 60_000

/** What both sandboxes have. */
export const ENVS = { GREETING: 'hello from an earlier version' }
const NETWORK = 'office'
/** Lines of the file /root/numbers: 1, 2, 3 and so on. */
export const NUMBERS = 200_000
/** Also written to stdout, where the guest agent's journal keeps it. */
const COUNTER = 'n=0; while :; do n=$((n+1)); echo $n > /run/count; echo $n; sleep 0.2; done'
const COUNTED_BEFORE_PAUSE = 3

export type UpgradeFixture = {
  backUp: string
  running: { id: string; ip: string }
  paused: { id: string; ip: string; processId: string }
}

export async function getUpgradeFixture(release: Release): Promise<UpgradeFixture> {
  const folder = path.join(CACHE, `${release.commit.slice(0, 12)}-${digestConditions(release)}`)
  if (!existsSync(folder)) await makeFixture(release, folder)
  await utimes(folder, new Date(), new Date())
  const made = JSON.parse(await readFile(path.join(folder, 'fixture.json'), 'utf8')) as Omit<UpgradeFixture, 'backUp'>
  return { ...made, backUp: path.join(folder, 'back-up.tar') }
}

/** A fixture is made again when this file or QEMU changes: a snapshot of a newer QEMU cannot be resumed by an older one. */
function digestConditions(release: Release): string {
  const qemu = execFileSync('qemu-system-x86_64', ['--version'])
  const parts = [JSON.stringify(release), readFileSync(import.meta.filename), qemu]
  return createHash('sha256').update(parts.join('\n')).digest('hex').slice(0, 12)
}

async function makeFixture(release: Release, folder: string): Promise<void> {
  const unfinished = `${folder}.new.${process.pid}`
  const startedAt = performance.now()
  try {
    await removeUnused()
    await mkdir(unfinished, { recursive: true })
    const dataDir = await createDataDir({ after })
    // Beside the data directory, and so removed with it.
    const checkout = path.join(path.dirname(dataDir), 'warren')
    await checkOut(release.commit, checkout)
    const made = await fillDataDir(release, checkout, dataDir)
    backUp(dataDir, path.join(unfinished, 'back-up.tar'))
    await removeLeftovers(dataDir) // The restored one uses the same addresses.
    await writeFile(path.join(unfinished, 'fixture.json'), JSON.stringify(made))
    await rename(unfinished, folder).catch((error) => {
      if (!existsSync(folder)) throw error // Otherwise another test run was faster.
    })
    const seconds = ((performance.now() - startedAt) / 1000).toFixed(0)
    process.stdout.write(`made a data directory with ${release.version} in ${seconds} s\n`)
  } finally {
    await rm(unfinished, { recursive: true, force: true })
  }
}

/** Of other releases and other states of this file, and what a killed run left. */
async function removeUnused(): Promise<void> {
  await mkdir(CACHE, { recursive: true })
  for (const name of await readdir(CACHE)) {
    const folder = path.join(CACHE, name)
    const { mtimeMs } = await stat(folder)
    if (Date.now() - mtimeMs > UNUSED_MS) await rm(folder, { recursive: true, force: true })
  }
}

/** Not a git worktree: a run that is killed would leave its entry in the repository. */
async function checkOut(commit: string, checkout: string): Promise<void> {
  await mkdir(checkout)
  const archive = `${checkout}.tar`
  await run('git', ['archive', `--output=${archive}`, commit], { cwd: ROOT })
  await run('tar', ['-xf', archive, '-C', checkout])
  await run('sh', ['tools/setup.sh'], { cwd: checkout, timeout: SETUP_LIMIT_MS, env: withoutNpmVariables() })
}

/** `npm test` sets them for this repository, and its npm must not read them in the checkout. */
const withoutNpmVariables = (): NodeJS.ProcessEnv =>
  Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith('npm_')))

/** Returns when Warren has stopped and nothing of it runs any more. */
async function fillDataDir(
  { cidr }: Release,
  checkout: string,
  dataDir: string,
): Promise<Omit<UpgradeFixture, 'backUp'>> {
  const { scripts } = JSON.parse(readFileSync(path.join(checkout, 'package.json'), 'utf8')) as {
    scripts: { start: string }
  }
  const instance = await startInstance(dataDir, {
    cwd: checkout,
    command: ['sh', '-c', scripts.start],
    env: {
      ...VM_ENV,
      PATH: `${checkout}/node_modules/.bin:${process.env.PATH}`,
      NODE_COMPILE_CACHE: `${checkout}.compiled`, // Of no use after the checkout is removed.
      WARREN_POOL_MIB: '0',
      WARREN_SANDBOX_CIDR: cidr,
    },
    readyLimitMs: VM_READY_LIMIT_MS,
  })
  const warren = { instance }
  await requestOk(warren, 'POST', '/networks', { name: NETWORK })
  const running = await createFilled(warren, 'running')
  const paused = await createFilled(warren, 'paused')
  const processes = processClient(warren, paused.id)
  const { process_id } = await processes.start({ cmd: 'sh', args: ['-c', COUNTER] })
  await processes.follow(process_id, 0, (text) => text.split('\n').length > COUNTED_BEFORE_PAUSE)
  await pauseSandbox(warren, paused.id)
  await stop(instance)
  await killProcesses(dataDir)
  return { running, paused: { ...paused, processId: process_id } }
}

async function createFilled(warren: Target, name: string): Promise<{ id: string; ip: string }> {
  const { id, ip } = await createSandbox(warren, { name, envs: ENVS, networks: [{ id: NETWORK }] })
  await runShell(warren, id, `seq ${NUMBERS} > /root/numbers; echo ${name} > /root/name; sync`)
  return { id, ip: ip! } // Every running sandbox has an address.
}
