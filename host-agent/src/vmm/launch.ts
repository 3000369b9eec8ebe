/**
 * Starting QEMU and getting to know it: as a user of its own, in its namespace and cgroup, with all its files as
 * descriptors. Used for the one cold boot of a base and for every clone.
 */
import { chown, lstat, mkdir, readFile, rm } from 'node:fs/promises'
import path from 'node:path'
import type { Undo } from '@warren/kit/undo'
import type { Deps } from '../deps.ts'
import { FDS, renderArgs, type Shape, SOCKETS, type Start } from './args.ts'
import { findProcess, killProcess, type ProcessHandle } from './process.ts'
import { Qmp } from './qmp.ts'

/** A file QEMU gets as a descriptor; `sealed` hands out a copy in memory that nobody can write to. */
export type VmFile = { path: string; flags: 'r' | 'r+' | 'w' | 'sealed' }
export type LaunchFiles = Partial<Record<Exclude<keyof typeof FDS, 'tap' | 'firstLayer'>, VmFile>>

export type Launch = {
  id: string
  start: Start
  /** Of machine, versioned. */
  type: string
  slot: number
  uid: number
  shape: Shape
  files: LaunchFiles
  /** Files between the base's disk and its own, the oldest first. */
  layers: string[]
  logFile: string
  cgroups: string[]
  /** Outlives the host agent, as sandboxes do. What only builds a base dies with whoever builds it. */
  lasting: boolean
}

export type Launched = { qemu: ProcessHandle; qmp: Qmp }

export async function launchQemu(deps: Deps, launch: Launch, undo: Undo, signal: AbortSignal): Promise<Launched> {
  const socketDir = socketDirOf(deps, launch.id)
  undo.add('socket folder', () => rm(socketDir, { recursive: true, force: true }))
  await rm(socketDir, { recursive: true, force: true })
  await mkdir(socketDir, { mode: 0o700 })
  await chown(socketDir, launch.uid, launch.uid)

  const { machine, network } = deps
  const { start, type, shape, layers } = launch
  const asked = { start, machine: { ...machine, type }, shape, socketDir, mtu: network.host.mtu }
  const args = renderArgs({ ...asked, layers: layers.length })
  const { pid } = await network.netd.request('spawnIn', {
    slot: launch.slot,
    ...(launch.lasting
      ? { command: machine.binary, args }
      : { command: 'setpriv', args: ['--pdeathsig', 'KILL', machine.binary, ...args] }),
    env: { PATH: process.env.PATH ?? '/usr/bin:/bin' },
    uid: launch.uid,
    gid: launch.uid,
    files: [
      ...Object.entries(launch.files).map(([name, file]) => ({ fd: FDS[name as keyof typeof FDS], ...file })),
      ...layers.map((path, i) => ({ fd: FDS.firstLayer + i, path, flags: 'r' as const })),
    ],
    stderrPath: launch.logFile,
    cgroupProcs: launch.cgroups,
  })
  const qemu = findProcess(pid)
  if (!qemu) throw new Error(`QEMU ended at once: ${await readLogTail(launch.logFile)}`)
  undo.add('QEMU', () => killProcess(qemu))
  const qmp = await connectMonitor(socketDir, qemu, signal).catch(async (error) => {
    throw new Error(`no monitor: ${await readLogTail(launch.logFile)}`, { cause: error })
  })
  undo.add('monitor', () => qmp.close())
  await lockSockets(socketDir)
  return { qemu, qmp }
}

/** They are made: from now on QEMU cannot put others, or other people's, in their place. */
async function lockSockets(socketDir: string): Promise<void> {
  await chown(socketDir, 0, 0)
  for (const name of Object.values(SOCKETS)) {
    if (!(await lstat(path.join(socketDir, name))).isSocket()) throw new Error(`QEMU's ${name} is no socket`)
  }
}

/** Gives up at once when QEMU is gone: nobody would ever make the socket. */
async function connectMonitor(socketDir: string, qemu: ProcessHandle, signal: AbortSignal): Promise<Qmp> {
  const ended = new AbortController()
  const watch = setInterval(() => {
    if (!findProcess(qemu.pid)) ended.abort(new Error('QEMU ended while it started'))
  }, 20)
  try {
    return await Qmp.connect(path.join(socketDir, SOCKETS.monitor), AbortSignal.any([signal, ended.signal]))
  } finally {
    clearInterval(watch)
  }
}

/** What QEMU said last, on one line. */
export async function readLogTail(logFile: string): Promise<string> {
  const lines = (await readFile(logFile, 'utf8').catch(() => '')).trim().split('\n')
  return lines.slice(-3).join(' | ').slice(-500) || 'it said nothing'
}

export const socketDirOf = (deps: Deps, id: string): string => path.join(deps.config.runDir, id)

export const socketsIn = (socketDir: string) => ({
  agent: path.join(socketDir, SOCKETS.agent),
  hello: path.join(socketDir, SOCKETS.hello),
})
