/**
 * Every step of pause, resume, fork and delete on the host is a named crash point (kit/src/crash-point.ts). At each of
 * them a process is killed: the host agent itself, or QEMU, the control plane or PostgreSQL while the host agent is held
 * at the point. Afterwards every sandbox settles without help, nothing acknowledged is lost, and no files remain.
 */
import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { after, describe, test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { checkChainOnDisk, startChain } from './support/hash-chain.ts'
import { getControlPlanePid, getPostmasterPid, kill } from './support/instance.ts'
import {
  createSandbox,
  destroySandbox,
  forkSandbox,
  getSandbox,
  pauseSandbox,
  request,
  requestOk,
  resumeSandbox,
} from './support/sandboxes.ts'
import {
  cannotRunVms,
  findQemuPid,
  SOAK,
  startUnlessSkipped,
  startVmInstance,
  VM_STORIES_LIMIT_MS,
} from './support/vm-instance.ts'

const POINTS = {
  pause: ['closed', 'stopped', 'saved', 'committed', 'recorded'],
  resume: ['loaded', 'awake'],
  fork: ['child-saved'],
  'live fork': ['merged', 'stopped', 'child-saved'],
  delete: ['ended', 'unrecorded'],
} as const
type Operation = keyof typeof POINTS
const KILLED_PROCESSES = ['host agent', 'QEMU', 'control plane', 'PostgreSQL'] as const
type KilledProcess = (typeof KILLED_PROCESSES)[number]

/** `npm test` kills the host agent at every point, and the other processes at these only; `npm run soak` kills all. */
const POINTS_FOR_OTHERS = new Set(['pause.stopped', 'pause.saved', 'resume.loaded', 'fork.child-saved'])
/** Every ninth live fork merges the disks that those before it froze. */
const MERGED = 'host.fork.merged'
const FORKS_BEFORE_MERGE = 8
const SETTLED = ['running', 'paused', 'error', 'destroyed']
const SETTLE_LIMIT_MS = 60_000

const folder = mkdtempSync(path.join(tmpdir(), 'warren-points-'))
after(() => rmSync(folder, { recursive: true }))
const warren = await startUnlessSkipped(cannotRunVms, () =>
  startVmInstance({ WARREN_CRASH_POINTS: folder, WARREN_POOL_MIB: '0', WARREN_STANDBY_MIB: '0' }),
)

describe('a process is killed at', { skip: cannotRunVms, timeout: VM_STORIES_LIMIT_MS }, () => {
  for (const operation of Object.keys(POINTS) as Operation[]) {
    for (const step of POINTS[operation]) {
      for (const killed of KILLED_PROCESSES) {
        const point = `host.${operation.replace('live ', '')}.${step}`
        if (!SOAK && killed !== 'host agent' && !POINTS_FOR_OTHERS.has(`${operation}.${step}`)) continue
        test(`${operation}, ${step}: ${killed}`, () => killAtPoint(operation, point, killed))
      }
    }
  }

  test('no process or file remains afterwards', async () => {
    await until(() => listQemus().length === 0, 'every QEMU has exited')
    for (const name of ['bodies', 'vms', 'snapshots/objects', 'snapshots/sandboxes']) {
      await until(() => readdirSync(path.join(warren.instance.dataDir, name)).length === 0, `${name} is empty`)
    }
  })
})

async function killAtPoint(operation: Operation, point: string, killed: KilledProcess): Promise<void> {
  const { id } = await createSandbox(warren)
  await startChain(warren, id)
  // One acknowledged generation, so that there is one to return to.
  const acknowledged = await checkChainOnDisk(warren, id, 1)
  await pauseSandbox(warren, id)
  if (operation !== 'resume' && operation !== 'fork') await resumeSandbox(warren, id)
  const seen =
    operation === 'resume' || operation === 'fork' ? acknowledged : await checkChainOnDisk(warren, id, acknowledged)

  if (point === MERGED) for (let i = 0; i < FORKS_BEFORE_MERGE; i++) await forkAndDestroy(id)
  writeFileSync(path.join(folder, point), killed === 'host agent' ? 'kill' : 'hold')
  const response = send(operation, id)
  await until(() => existsSync(path.join(folder, `${point}.reached`)), `${point} is reached`, 30_000)
  if (killed !== 'host agent') await killProcess(killed, id)
  rmSync(path.join(folder, point), { force: true })
  rmSync(path.join(folder, `${point}.reached`), { force: true })
  await response

  await until(isReady, 'Warren is ready again', SETTLE_LIMIT_MS)
  const children = await waitUntilSettled(id)
  for (const child of children) await destroySandbox(warren, child)
  if ((await getSandbox(warren, id)).status === 'destroyed') return
  await ensureRuns(id)
  if (point === MERGED) {
    // What a save contains follows from the record; what the guest reads, from the files that QEMU has open.
    await pauseSandbox(warren, id)
    await resumeSandbox(warren, id)
  }
  // Only a killed QEMU may lose what was written after the acknowledged generation.
  await checkChainOnDisk(warren, id, killed === 'QEMU' ? acknowledged : seen)
  assert.ok(listQemus().length <= 1, 'no QEMU without a sandbox')
  await destroySandbox(warren, id)
}

async function forkAndDestroy(id: string): Promise<void> {
  const child = await forkSandbox(warren, id, { live: true, start_paused: true })
  await destroySandbox(warren, child.id)
}

/** Ignores the response: the process that would send it may be the one that is killed. */
async function send(operation: Operation, id: string): Promise<void> {
  const sendOne = (method: string, what: string, body?: object) =>
    request(warren, method, `/sandboxes/${id}${what}`, body).catch(() => undefined)
  if (operation === 'pause' || operation === 'resume') await sendOne('POST', `/${operation}`)
  else if (operation === 'fork') await sendOne('POST', '/fork', { start_paused: true })
  else if (operation === 'live fork') await sendOne('POST', '/fork', { start_paused: true, live: true })
  else await sendOne('DELETE', '')
}

async function killProcess(killed: Exclude<KilledProcess, 'host agent'>, id: string): Promise<void> {
  const recorded = findQemuPid(warren, id)
  if (killed === 'PostgreSQL') kill(getPostmasterPid(warren.instance.dataDir))
  else if (killed === 'control plane') kill(await getControlPlanePid(warren.instance.dataDir))
  // A QEMU that is just being started has no record yet.
  else for (const pid of recorded === undefined ? listQemus() : [recorded]) kill(pid)
}

const isReady = async () => (await fetch(`${warren.instance.baseUrl}/readyz`).catch(() => undefined))?.ok ?? false

/** Waits for the sandbox and its forks, and returns the forks. */
async function waitUntilSettled(id: string): Promise<string[]> {
  let children: string[] = []
  await until(
    async () => {
      const { data } = await requestOk(warren, 'GET', '/sandboxes?limit=500').catch(() => ({ data: undefined }))
      const mine = (data as { id: string; status: string; forked_from?: string }[] | undefined)?.filter(
        (one) => one.id === id || (one.forked_from === id && one.status !== 'failed'),
      )
      children = mine?.flatMap((one) => (one.id === id || one.status === 'destroyed' ? [] : one.id)) ?? []
      return mine?.every((one) => SETTLED.includes(one.status)) ?? false
    },
    'the sandbox and its forks have settled',
    SETTLE_LIMIT_MS,
  )
  return children
}

/** Resumes it through the API. That a QEMU was killed may be noticed only now. */
async function ensureRuns(id: string): Promise<void> {
  await until(
    async () => {
      const { status } = await getSandbox(warren, id)
      if (status === 'paused' || status === 'error') await request(warren, 'POST', `/sandboxes/${id}/resume`)
      if (status !== 'running') return false
      return (await request(warren, 'POST', `/sandboxes/${id}/exec`, { cmd: 'true' })).status === 200
    },
    'it runs again',
    SETTLE_LIMIT_MS,
  )
}

/** The QEMU processes of sandboxes, without those of bases that are being booted. */
function listQemus(): number[] {
  const ours = new RegExp(`/run/warren-${readInstance()}/[0-9a-f]{16}(/|\0)`)
  return readdirSync('/proc').flatMap((pid) => {
    if (!/^\d+$/.test(pid)) return []
    try {
      const command = readFileSync(`/proc/${pid}/cmdline`, 'utf8')
      return command.includes('qemu-system') && ours.test(command) ? [Number(pid)] : []
    } catch {
      return [] // It exited meanwhile.
    }
  })
}

/** The host agent names its resources after a hash of its data directory. */
function readInstance(): string {
  return createHash('sha256').update(warren.instance.dataDir).digest('hex').slice(0, 8)
}
