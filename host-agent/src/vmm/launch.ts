/**
 * Starts a QEMU process and connects to its monitor. The process runs in a jail (jail/src/main.rs): under a private user
 * id, in its cgroup, with an empty network and a file system that contains nothing but QEMU itself, its work folder and
 * its sockets. It receives all other files as descriptors. Used for the one cold boot of a base and for every clone.
 */
import { chownSync, lstatSync, mkdirSync, rmSync } from 'node:fs'
import path from 'node:path'
import { abortable } from '@warren/kit/abortable'
import { span } from '@warren/kit/span'
import { translationMib } from '@warren/protocol'
import type { Deps } from '../deps.ts'
import type { Undo } from '../undo.ts'
import { FDS, type Machine, renderArgs, type Shape, SOCKETS, type Start } from './args.ts'
import { socketFolderOf } from './folders.ts'
import { JAIL_BINARY, renderJailArgs, SOCKETS_IN_JAIL } from './jail/options.ts'
import { READ_ONLY_RAM_IN_JAIL } from './jail/root.ts'
import { readLogTail } from './log.ts'
import { findProcess, killProcess, type ProcessHandle } from './process.ts'
import { Qmp } from './qmp.ts'

/** A file that QEMU gets as a descriptor. */
export type LaunchFile = { path: string; flags: 'r' | 'r+' | 'w' }
export type LaunchFiles = Partial<Record<Exclude<keyof typeof FDS, 'tap' | 'work' | 'firstLayer'>, LaunchFile>>

export type Launch = {
  id: string
  start: Start
  /** Versioned, such as pc-q35-7.2. */
  machineType: string
  hardware: number
  slot: number
  uid: number
  shape: Shape
  files: LaunchFiles
  workFolder: string
  diskMib: number
  /** Disk layers between the base's disk and the VMM's own, oldest first. */
  layers: string[]
  logFile: string
  cgroups: string[]
  /** A sandbox outlives the host agent. A VMM that only builds or proves a base is killed with it. */
  outlivesHostAgent: boolean
}

export type Launched = { qemu: ProcessHandle; qmp: Qmp }

const ALIVE_POLL_MS = 20

export async function launchQemu(deps: Deps, launch: Launch, undo: Undo, signal: AbortSignal): Promise<Launched> {
  const socketFolder = socketFolderOf(deps, launch.id)
  const removeSockets = () => rmSync(socketFolder, { recursive: true, force: true })
  undo.add('socket folder', async () => removeSockets())
  removeSockets()
  mkdirSync(socketFolder, { mode: 0o700 })
  chownSync(socketFolder, launch.uid, launch.uid)

  signal.throwIfAborted()
  const spawned = span('start QEMU', () => spawnQemu(deps, launch, socketFolder)).then((pid) => {
    const qemu = findProcess(pid)
    if (qemu) undo.add('QEMU', () => killProcess(qemu))
    return qemu
  })
  // Not by `signal`: the slot is released after QEMU has exited. A stop cannot wait for a launcher that is busy, and removes
  // what is left in the end (remove-leftovers.ts).
  const qemu = await abortable(spawned, deps.stopping)
  if (!qemu) throw new Error(`QEMU exited immediately: ${await readLogTail(launch.logFile)}`)
  const qmp = await span('wait for monitor', () => connectMonitor(socketFolder, qemu, signal)).catch(async (error) => {
    throw new Error(`failed to connect to QEMU's monitor: ${await readLogTail(launch.logFile)}`, { cause: error })
  })
  undo.add('monitor', () => qmp.close())
  lockSockets(socketFolder)
  return { qemu, qmp }
}

/** Returns the pid. */
async function spawnQemu(deps: Deps, launch: Launch, socketFolder: string): Promise<number> {
  const { machine, network, jailRoot } = deps
  const { layers, uid, workFolder, diskMib } = launch
  const reportFd = FDS.firstLayer + layers.length
  const jail = renderJailArgs({
    ...{ root: jailRoot.folder, accel: machine.accel, uid, diskMib, socketFolder, workFolder, reportFd },
    cgroupProcs: launch.cgroups,
    diesWithHostAgent: !launch.outlivesHostAgent,
  })
  const args = renderArgs({
    start: launch.start,
    machine: { ...machine, type: launch.machineType, hardware: launch.hardware },
    shape: launch.shape,
    translationMib: translationMib(launch.shape.vcpu),
    socketDir: SOCKETS_IN_JAIL,
    mtu: network.host.mtu,
    layers: layers.length,
  })
  const { pid } = await deps.launcher.request('spawn', {
    slot: launch.slot,
    command: deps.config.vmmProgram || JAIL_BINARY,
    // The name is for operators: `ps` shows whose process it is.
    args: [...jail, jailRoot.qemu, ...args, '-name', `guest=${socketFolder.replaceAll(',', ',,')}`],
    env: needsReadOnlyRam(deps.machine, launch.files) ? { LD_PRELOAD: READ_ONLY_RAM_IN_JAIL } : {},
    uid: 0,
    gid: 0,
    files: [
      ...Object.entries(launch.files).map(([name, file]) => ({ fd: FDS[name as keyof typeof FDS], ...file })),
      ...layers.map((path, i) => ({ fd: FDS.firstLayer + i, path, flags: 'r' as const })),
    ],
    stderrPath: launch.logFile,
    reportFd,
  })
  return pid
}

/** A QEMU without the option for it opens its memory for writing, and would fail (read-only-ram/src/lib.rs). */
const needsReadOnlyRam = (machine: Machine, { ram }: LaunchFiles): boolean => ram?.flags === 'r' && !machine.readOnlyRam

/** The sockets exist now. From here on QEMU can no longer replace them with other files or with links. */
function lockSockets(socketFolder: string): void {
  chownSync(socketFolder, 0, 0)
  for (const name of Object.values(SOCKETS)) {
    if (!lstatSync(path.join(socketFolder, name)).isSocket()) throw new Error(`QEMU's ${name} is not a socket`)
  }
}

/** Gives up as soon as QEMU has exited: the socket would never appear. */
async function connectMonitor(socketFolder: string, qemu: ProcessHandle, signal: AbortSignal): Promise<Qmp> {
  const exited = new AbortController()
  const timer = setInterval(() => {
    if (!findProcess(qemu.pid)) exited.abort(new Error('QEMU exited while it was starting'))
  }, ALIVE_POLL_MS)
  try {
    return await Qmp.connect(path.join(socketFolder, SOCKETS.monitor), AbortSignal.any([signal, exited.signal]))
  } finally {
    clearInterval(timer)
  }
}
