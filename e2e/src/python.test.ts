/** The public Python client against real virtual machines: another HTTP library, and stricter about what it reads. */
import assert from 'node:assert/strict'
import { execFile, spawnSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { existsSync, readFileSync, renameSync, rmSync } from 'node:fs'
import { homedir } from 'node:os'
import path from 'node:path'
import { describe, test } from 'node:test'
import { promisify } from 'node:util'
import { until } from '@warren/kit/testing/until'
import { ROOT } from './support/instance.ts'
import { request } from './support/sandboxes.ts'
import {
  cannotRunVms,
  deleteAllSandboxes,
  startVmInstance,
  VM_READY_LIMIT_MS,
  VM_STORIES_LIMIT_MS,
} from './support/vm-instance.ts'

const FOLDER = path.join(ROOT, 'e2e/python')
/** Nothing of the story hangs; emulated machines on a busy one take their time. */
const STORY_LIMIT_MS = 10 * 60_000
const INSTALL_LIMIT_MS = 120_000

const python = cannotRunVms ? undefined : installClient()
const cannotRun = cannotRunVms || (python === undefined ? 'the Python client could not be installed here' : false)
const warren = cannotRun ? (undefined as never) : await startVmInstance()

describe('the public Python client', { skip: cannotRun, timeout: VM_STORIES_LIMIT_MS }, () => {
  test('does all that it can', async () => {
    // The first create boots the base, longer than a create may take on a busy machine; the client gives up at a 502.
    const firstCreate = async () =>
      (await request(warren, 'POST', '/sandboxes', { shape: 's-1vcpu-256mb' })).status === 200
    await until(firstCreate, 'the base has booted', VM_READY_LIMIT_MS)
    await deleteAllSandboxes(warren)
    const env = { CREATEOS_SANDBOX_BASE_URL: warren.instance.baseUrl, CREATEOS_API_KEY: warren.instance.key }

    const story = promisify(execFile)(python!, [path.join(FOLDER, 'client_story.py')], { env, timeout: STORY_LIMIT_MS })

    const { stdout } = await story.catch((error) => assert.fail(`${error.stdout}\n${error.stderr}`))
    assert.match(stdout, /^probes\n.*\na host that is none\n$/s)
  })
})

/** Once for each list of versions, beside the other caches. Undefined without Python, its venv or a package index. */
function installClient(): string | undefined {
  const wanted = path.join(FOLDER, 'requirements.txt')
  const digest = createHash('sha256').update(readFileSync(wanted)).digest('hex').slice(0, 16)
  const cache = path.join(process.env.XDG_CACHE_HOME || path.join(homedir(), '.cache'), 'warren/test-clients')
  const venv = path.join(cache, `python-${digest}`)
  const made = `${venv}.${process.pid}`
  const run = (command: string, ...args: string[]) =>
    spawnSync(command, args, { timeout: INSTALL_LIMIT_MS, stdio: 'ignore' }).status === 0
  if (!existsSync(venv)) {
    if (!run('python3', '-m', 'venv', made) || !run(`${made}/bin/python`, '-m', 'pip', 'install', '-qr', wanted)) {
      rmSync(made, { recursive: true, force: true })
      return undefined
    }
    renameSync(made, venv)
  }
  return `${venv}/bin/python`
}
