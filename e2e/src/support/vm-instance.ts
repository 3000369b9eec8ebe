/**
 * A Warren with virtual machines. After the tests every sandbox is deleted, so that the host agent has nothing to keep
 * running and removes its network when it stops.
 */
import { spawnSync } from 'node:child_process'
import { existsSync, readFileSync } from 'node:fs'
import path from 'node:path'
import { after } from 'node:test'
import { CreateosSandboxClient } from '@nodeops-createos/sandbox'
import { addCleanUp, cleanUpFile } from '@warren/kit/testing/clean-up'
import { scaleLimit } from '@warren/kit/testing/slowness'
import { until } from '@warren/kit/testing/until'
import { createDataDir, type Instance, killProcesses, runWarren, startInstance, stop } from './instance.ts'

export { skipWithoutImage } from '@warren/kit/testing/skip-without-image'

/** The reason to skip, or false. */
export const cannotRunVms: string | false =
  process.getuid?.() !== 0 ? 'virtual machines need root' : hasNoQemu() ? 'QEMU is not installed' : false

function hasNoQemu(): boolean {
  return spawnSync('qemu-system-x86_64', ['--version']).status !== 0
}

/**
 * Starts what the tests of a file share, unless they are skipped. A skipped file gets an empty object, which the cast hides
 * from the types: its tests, the only readers, do not run.
 */
export async function startUnlessSkipped<T extends object>(skip: string | false, start: () => Promise<T>): Promise<T> {
  if (skip) return {} as T
  try {
    return await start()
  } catch (error) {
    // The first error is the cause; those of the clean-up follow from it.
    await cleanUpFile().catch(() => {})
    throw error
  }
}

export const VM_ENV = { WARREN_VMS: 'on', WARREN_BACKGROUND_IMAGES: 'none', WARREN_PREPARE_SHAPES: 'none' }
/** The first start on a machine builds the image. */
export const VM_READY_LIMIT_MS = scaleLimit(10 * 60_000)

/** `npm run soak` runs the same tests for longer and at every crash point. */
export const SOAK = process.env.WARREN_TEST_SOAK !== undefined

/** For all tests of a file together. Generous: emulated VMs on a busy machine are slow. */
export const VM_STORIES_LIMIT_MS = scaleLimit((SOAK ? 240 : 30) * 60_000)

export type VmInstance = {
  instance: Instance
  client: CreateosSandboxClient
  clientOf(key: string): CreateosSandboxClient
  /** Creates a user on a plan and returns its API key. */
  createUser(name: string, plan: string): Promise<string>
  /** Starts it again on the same data directory, after it was stopped or killed. */
  restart(): Promise<void>
}

type DataDirOptions = {
  /** Instead of a new one. */
  dataDir?: string
  /** Fills the new one before the start. It does not exist yet. */
  fill?: (dataDir: string) => void
}

/** Called at the top of a test file, for all of its tests. */
export async function startVmInstance(
  env: NodeJS.ProcessEnv = {},
  { dataDir: existing, fill }: DataDirOptions = {},
): Promise<VmInstance> {
  let started: VmInstance | undefined
  // Runs before the clean-up of createDataDir, which kills what remains.
  addCleanUp({ after }, async () => {
    if (!started) return
    try {
      await deleteAllSandboxes(started)
    } finally {
      await stop(started.instance)
    }
  })
  const dataDir = existing ?? (await createDataDir({ after }))
  if (existing) addCleanUp({ after }, () => killProcesses(existing))
  fill?.(dataDir)
  const start = () => startInstance(dataDir, { env: { ...VM_ENV, ...env }, readyLimitMs: VM_READY_LIMIT_MS })
  const warren: VmInstance = {
    instance: await start(),
    get client() {
      return warren.clientOf(warren.instance.key)
    },
    clientOf: (apiKey) => new CreateosSandboxClient({ baseUrl: warren.instance.baseUrl, apiKey }),
    async createUser(name, plan) {
      const { stdout } = await runWarren(dataDir, 'admin', '--json', 'user', 'create', name, '--plan', plan)
      return JSON.parse(stdout).api_key
    },
    async restart() {
      warren.instance = await start()
    },
  }
  started = warren
  return warren
}

/** The QEMU process of a running sandbox, from the host agent's record. */
export function findQemuPid({ instance }: VmInstance, id: string): number | undefined {
  const file = path.join(instance.dataDir, 'vms', `${id}.json`)
  return existsSync(file) ? JSON.parse(readFileSync(file, 'utf8')).vmm?.qemu.pid : undefined
}

/** How the guest of a running sandbox is run, from the command line of its QEMU. */
export function accelerationOf(warren: VmInstance, id: string): 'kvm' | 'tcg' {
  return readFileSync(`/proc/${findQemuPid(warren, id)}/cmdline`, 'utf8').includes('\0kvm\0') ? 'kvm' : 'tcg'
}

/** Returns when the host agent has no VM any more. */
export async function deleteAllSandboxes({ instance, client }: Pick<VmInstance, 'instance' | 'client'>): Promise<void> {
  for (const sandbox of await client.listSandboxes()) await sandbox.destroy()
  await until(async () => {
    const response = await fetch(`${instance.baseUrl}/v1/hosts`, { headers: { 'x-api-key': instance.key } })
    const body = (await response.json()) as { data: { data: { vm_count: number }[] } }
    return body.data.data.every((host) => host.vm_count === 0)
  }, 'every VM is deleted')
}
