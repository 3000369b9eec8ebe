/**
 * A Warren with virtual machines, for the stories about them. When it is over every sandbox is deleted, so that the
 * host agent finds nothing to keep and takes its network down.
 */
import { spawnSync } from 'node:child_process'
import { existsSync, readFileSync } from 'node:fs'
import { homedir } from 'node:os'
import path from 'node:path'
import { after } from 'node:test'
import { CreateosSandboxClient } from '@nodeops-createos/sandbox'
import { until } from '@warren/kit/testing/until'
import { type Box, makeDataDir, startBox, stop, warren } from './box.ts'

export const cannotRunVms: string | false =
  process.getuid?.() !== 0 ? 'virtual machines need root' : noQemu() ? 'no QEMU here' : false

function noQemu(): boolean {
  return spawnSync('qemu-system-x86_64', ['--version']).status !== 0
}

/** Of the images that take minutes to build, and are used where they are (`npm start` builds them in the background). */
export function imageMissing(name: string): string | false {
  const cache = process.env.XDG_CACHE_HOME || path.join(homedir(), '.cache')
  return existsSync(path.join(cache, 'warren/images/names', name)) ? false : `${name} is not built on this machine`
}

export const VM_ENV = { WARREN_VMS: 'on', WARREN_BACKGROUND_IMAGES: 'none' }
/** The first start on a machine builds the image. */
export const VM_READY_LIMIT_MS = 10 * 60_000

/** `npm run soak`: the same stories, longer and at every point. */
export const SOAK = process.env.WARREN_TEST_SOAK !== undefined

/** For all stories of a file together: emulated machines on a busy one take their time. */
export const VM_STORIES_LIMIT_MS = (SOAK ? 240 : 30) * 60_000

export type VmBox = {
  box: Box
  client: CreateosSandboxClient
  clientOf(key: string): CreateosSandboxClient
  /** A user on a plan, and its key. */
  user(name: string, plan: string): Promise<string>
  /** Starts it again on the same data, after it was stopped or killed. */
  restart(): Promise<void>
}

/** For a whole test file, at its top. */
export async function startVmBox(env: NodeJS.ProcessEnv = {}, place?: string): Promise<VmBox> {
  let started: VmBox | undefined
  // Hooks run in the order they are made: this one before the one that ends what is left.
  after(async () => {
    if (!started) return
    await deleteAll(started)
    await stop(started.box)
  })
  const dataDir = place ?? (await makeDataDir({ after }))
  const start = () => startBox(dataDir, { env: { ...VM_ENV, ...env }, readyLimitMs: VM_READY_LIMIT_MS })
  const it: VmBox = {
    box: await start(),
    get client() {
      return it.clientOf(it.box.key)
    },
    clientOf: (apiKey) => new CreateosSandboxClient({ baseUrl: it.box.baseUrl, apiKey }),
    async user(name, plan) {
      const { stdout } = await warren(dataDir, 'admin', '--json', 'user', 'create', name, '--plan', plan)
      return JSON.parse(stdout).api_key
    },
    async restart() {
      it.box = await start()
    },
  }
  started = it
  return it
}

/** The process behind a sandbox that runs, as the host agent remembers it. */
export function qemuOf({ box }: VmBox, id: string): number | undefined {
  const file = path.join(box.dataDir, 'vms', `${id}.json`)
  return existsSync(file) ? JSON.parse(readFileSync(file, 'utf8')).body?.qemu.pid : undefined
}

export async function deleteAll({ box, client }: Pick<VmBox, 'box' | 'client'>): Promise<void> {
  for (const sandbox of await client.listSandboxes()) await sandbox.destroy()
  await until(async () => {
    const response = await fetch(`${box.baseUrl}/v1/hosts`, { headers: { 'x-api-key': box.key } })
    const body = (await response.json()) as { data: { data: { vm_count: number }[] } }
    return body.data.data.every((host) => host.vm_count === 0)
  }, 'every VM is gone')
}
