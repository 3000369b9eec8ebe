/** The public Python client against real VMs: it uses another HTTP library and validates responses more strictly. */

import assert from 'node:assert/strict'
import { execFile, spawnSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { readFileSync, renameSync, rmSync } from 'node:fs'
import { homedir } from 'node:os'
import path from 'node:path'
import { describe, test } from 'node:test'
import { promisify } from 'node:util'
import { scaleLimit } from '@warren/kit/testing/slowness'
import { until } from '@warren/kit/testing/until'
import { ROOT } from './support/instance.ts'
import { request } from './support/sandboxes.ts'
import {
  cannotRunVms,
  deleteAllSandboxes,
  startUnlessSkipped,
  startVmInstance,
  VM_READY_LIMIT_MS,
  VM_STORIES_LIMIT_MS,
} from './support/vm-instance.ts'

const FOLDER = path.join(ROOT, 'e2e/python')
/** Generous: emulated VMs on a busy machine are slow. */
const STORY_LIMIT_MS = scaleLimit(10 * 60_000)
const INSTALL_LIMIT_MS = scaleLimit(120_000)

const python = cannotRunVms ? undefined : installClient()
const cannotRun =
  cannotRunVms || (python === undefined ? 'the Python client cannot be installed on this machine' : false)
const warren = await startUnlessSkipped(cannotRun, () => startVmInstance())

describe('the public Python client', { skip: cannotRun, timeout: VM_STORIES_LIMIT_MS }, () => {
  test('works unmodified with everything that Warren serves', async () => {
    // On a busy machine the first create, which boots the base, may exceed its limit; the client does not retry a 502.
    const firstCreate = async () =>
      (await request(warren, 'POST', '/sandboxes', { shape: 's-1vcpu-256mb' })).status === 200
    await until(firstCreate, 'the base has booted', VM_READY_LIMIT_MS)
    await deleteAllSandboxes(warren)
    const env = { CREATEOS_SANDBOX_BASE_URL: warren.instance.baseUrl, CREATEOS_API_KEY: warren.instance.key }

    const story = promisify(execFile)(python!, [path.join(FOLDER, 'client_story.py')], { env, timeout: STORY_LIMIT_MS })

    const { stdout } = await story.catch(({ code, signal, stdout, stderr }) =>
      assert.fail(`ended with ${code ?? signal}:\n${stdout}\n${stderr}`),
    )
    assert.match(stdout, /^probes\n.*\nan unknown host\n$/s)
  })
})

/** Installs it once per list of versions. Returns undefined without Python, venv or a package index. */
function installClient(): string | undefined {
  const requirements = path.join(FOLDER, 'requirements.txt')
  const digest = createHash('sha256').update(readFileSync(requirements)).digest('hex').slice(0, 16)
  const cache = path.join(process.env.XDG_CACHE_HOME || path.join(homedir(), '.cache'), 'warren/test-clients')
  const venv = path.join(cache, `python-${digest}`)
  const staging = `${venv}.${process.pid}`
  const run = (command: string, ...args: string[]) =>
    spawnSync(command, args, { timeout: INSTALL_LIMIT_MS, stdio: 'ignore' }).status === 0
  if (!run(`${venv}/bin/python`, '--version')) {
    rmSync(venv, { recursive: true, force: true }) // Its Python was removed or upgraded.
    if (
      !run(findPython(), '-m', 'venv', staging) ||
      !run(`${staging}/bin/python`, '-m', 'pip', 'install', '-qr', requirements)
    ) {
      rmSync(staging, { recursive: true, force: true })
      return undefined
    }
    renameSync(staging, venv)
  }
  return `${venv}/bin/python`
}

/** The program itself: a link to it from the PATH of one test run does not outlive that run. */
function findPython(): string {
  const { status, stdout } = spawnSync('python3', ['-c', 'import os, sys; print(os.path.realpath(sys.executable))'], {
    encoding: 'utf8',
  })
  return status === 0 ? stdout.trim() : 'python3'
}
