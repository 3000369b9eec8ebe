/**
 * A VM without Warren around it: the same kernel, image, devices and guest agent, with QEMU started directly. The bench
 * uses it as the baseline, to measure what Warren adds to the cost of QEMU. nested-kvm uses it where the rest of Warren
 * cannot run.
 *
 * It differs from a sandbox in two ways: its network card is not connected, and QEMU runs as root outside any cgroup. With
 * `jail` it runs in the jail of sandboxes instead, under another user id for each VM.
 */
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { chmod, chown, mkdir, open, readdir, rm, truncate, writeFile } from 'node:fs/promises'
import path from 'node:path'
import type { Readable } from 'node:stream'
import { text } from 'node:stream/consumers'
import { setTimeout as delay } from 'node:timers/promises'
import { type GuestChannel, openGuestChannel } from '../guest/channel.ts'
import { runInGuest } from '../guest/run-in-guest.ts'
import {
  diskFile,
  FDS,
  INCOMING_STATE,
  inWork,
  type Machine,
  renderArgs,
  type Shape,
  SOCKETS,
  STATE_FILE,
} from '../vmm/args.ts'
import { createOverlay } from '../vmm/disk/qcow2/overlay.ts'
import { JAIL_BINARY, renderJailArgs, SOCKETS_IN_JAIL } from '../vmm/jail/options.ts'
import type { JailRoot } from '../vmm/jail/root.ts'
import { findProcess, killProcess } from '../vmm/process.ts'
import { Qmp } from '../vmm/qmp.ts'

export type BareVm = {
  pid: number
  qmp: Qmp
  channel: GuestChannel
  exec(cmd: string, args?: string[]): Promise<void>
  stop(): Promise<void>
}
/** A VM that was booted and saved, for clones to start from. */
export type BareSnapshot = { shape: Shape; files: { disk: string; ram: string; state: string } }

/** What a VM is made of. `folder` receives all its files and belongs to the caller. */
export type Parts = {
  machine: Machine
  kernel: string
  initramfs: string
  image: string
  folder: string
  jail?: JailRoot
}
type Files = Partial<Record<keyof typeof FDS, [path: string, flags: string]>>

const DISK_MIB = 10_240
const MTU = 1500
const BOOT_LIMIT_MS = 120_000
/** Nested virtualisation is slow. */
const EXEC_LIMIT_MS = 10 * 60_000

const REPORT_FD: number = FDS.firstLayer
/** No account of a machine has it. The number of the VM is added. */
const FIRST_UID = 654_000

let count = 0

/** Settles when the guest agent responds. */
export async function bootBareVm(parts: Parts, shape: Shape): Promise<BareVm & BareSnapshot> {
  const folder = await makeFolder(parts, parts.image, 'raw')
  const ram = path.join(folder, 'ram')
  await writeFile(ram, '')
  await truncate(ram, shape.mem_mib * 1024 * 1024)
  const vm = await startQemu(parts, folder, 'base', shape, {
    ram: [ram, 'r+'],
    kernel: [parts.kernel, 'r'],
    initrd: [parts.initramfs, 'r'],
    console: [path.join(folder, 'console.log'), 'w'],
  })
  const work = path.join(folder, 'work')
  return { ...vm, shape, files: { disk: path.join(work, diskFile(0)), ram, state: path.join(work, STATE_FILE) } }
}

/** Boots a VM, runs a command so that its pages are in memory, and saves it. */
export async function makeBareSnapshot(parts: Parts, shape: Shape): Promise<BareSnapshot> {
  const vm = await bootBareVm(parts, shape)
  for (let i = 0; i < 3; i++) await vm.exec('/bin/true')
  vm.channel.close()
  await vm.qmp.run('stop')
  await saveState(vm)
  await vm.stop()
  return vm
}

export const saveState = (vm: Pick<BareVm, 'qmp'>): Promise<unknown> =>
  vm.qmp.run('xen-save-devices-state', { filename: inWork(STATE_FILE), live: false })

/** A clone like those of sandboxes, with private memory and an empty disk. Settles when the guest agent responds. */
export async function cloneBareVm(parts: Parts, { shape, files }: BareSnapshot): Promise<BareVm> {
  const folder = await makeFolder(parts, files.disk, 'qcow2')
  return startQemu(parts, folder, 'state', shape, {
    baseDisk: [files.disk, 'r'],
    ram: [files.ram, parts.machine.readOnlyRam ? 'r' : 'r+'],
    state: [files.state, 'r'],
  })
}

/** The folders for QEMU's sockets and its work folder with the disk. */
async function makeFolder(parts: Parts, backing: string, format: 'raw' | 'qcow2'): Promise<string> {
  const folder = path.join(parts.folder, `vm-${++count}`)
  for (const name of ['work', 'sockets']) await mkdir(path.join(folder, name), { recursive: true })
  const disk = path.join(folder, 'work', diskFile(0))
  await createOverlay(disk, { sizeMib: DISK_MIB, backing: { file: backing, format } })
  return folder
}

async function startQemu(
  { machine, image, jail }: Parts,
  folder: string,
  start: 'base' | 'state',
  shape: Shape,
  files: Files,
): Promise<BareVm> {
  const signal = AbortSignal.timeout(BOOT_LIMIT_MS)
  const sockets = path.join(folder, 'sockets')
  const socketDir = jail ? SOCKETS_IN_JAIL : sockets
  const args = renderArgs({ start, machine, shape, socketDir, mtu: MTU, layers: 0 }).map((arg) =>
    arg === `tap,id=n0,fd=${FDS.tap}` ? 'hubport,id=n0,hubid=0' : arg,
  )
  const common: Files = { image: [image, 'r'], work: [path.join(folder, 'work'), 'r'] }
  const command = jail ? await jailed(jail, machine, folder, files, args) : [machine.binary, ...args]
  const { pid, child } = await spawnWith(command, { ...common, ...files }, path.join(folder, 'qemu.log'))
  const stop = () => stopQemu(pid, child, sockets)
  try {
    const qmp = await Qmp.connect(path.join(sockets, SOCKETS.monitor), signal)
    if (start === 'state') await loadState(qmp, signal)
    const ofGuest = { agent: path.join(sockets, SOCKETS.agent), hello: path.join(sockets, SOCKETS.hello) }
    const channel = await openGuestChannel(ofGuest, signal)
    return {
      pid,
      qmp,
      channel,
      async exec(cmd, execArgs = []) {
        const code = await runInGuest(channel.session, { cmd, args: execArgs }, AbortSignal.timeout(EXEC_LIMIT_MS))
        if (code !== 0) throw new Error(`${cmd} exited with ${code}`)
      },
      async stop() {
        channel.close()
        qmp.close()
        await stop()
      },
    }
  } catch (error) {
    await stop()
    throw error
  }
}

async function loadState(qmp: Qmp, signal: AbortSignal): Promise<void> {
  await qmp.run('migrate-incoming', { uri: INCOMING_STATE })
  while ((await qmp.run<{ status: string }>('query-status')).status === 'inmigrate')
    await delay(1, undefined, { signal })
  await qmp.run('cont')
}

/** The command line of a VM in a jail. Gives it what it must be able to write or to open again. */
async function jailed(
  jail: JailRoot,
  { accel }: Machine,
  folder: string,
  { ram }: Files,
  args: string[],
): Promise<string[]> {
  const uid = FIRST_UID + Number(/\d+$/.exec(folder)?.[0])
  const [workFolder, socketFolder] = [path.join(folder, 'work'), path.join(folder, 'sockets')]
  const inWork = (await readdir(workFolder)).map((name) => path.join(workFolder, name))
  for (const file of [workFolder, ...inWork, socketFolder]) await chown(file, uid, uid)
  if (ram) await chmod(ram[0], 0o666) // An older QEMU opens it for writing, also for a clone that maps it privately.
  const options = { root: jail.folder, accel, uid, diskMib: DISK_MIB, socketFolder, workFolder, reportFd: REPORT_FD }
  const jailArgs = renderJailArgs({ ...options, cgroupProcs: [], diesWithHostAgent: true })
  return [JAIL_BINARY, ...jailArgs, jail.qemu, ...args]
}

/** Passes files as descriptors with the numbers that the command line expects. */
async function spawnWith(
  [command, ...args]: string[],
  files: Files,
  logFile: string,
): Promise<{ pid: number; child: ChildProcess }> {
  const handles = [await open(logFile, 'w')]
  const stdio: (number | 'ignore' | 'pipe')[] = ['ignore', 'ignore', handles[0]!.fd]
  for (const [name, fd] of Object.entries(FDS)) {
    const file = files[name as keyof typeof FDS]
    if (file) handles.push(await open(...file))
    stdio[fd] = file ? handles.at(-1)!.fd : 'ignore'
  }
  const isJailed = command === JAIL_BINARY
  if (isJailed) stdio[REPORT_FD] = 'pipe'
  try {
    const child = spawn(command!, args, { stdio }) // The callers pass a program.
    await once(child, 'spawn')
    const report = isJailed ? await text(child.stdio[REPORT_FD] as Readable) : `pid ${child.pid}`
    const pid = /^pid (\d+)$/m.exec(report)?.[1]
    if (pid === undefined || report.includes('error')) throw new Error(`failed to start QEMU: ${report}`)
    return { pid: Number(pid), child }
  } finally {
    for (const handle of handles) await handle.close()
  }
}

/** Disks, memory and state stay: a snapshot may consist of them. */
async function stopQemu(pid: number, child: ChildProcess, sockets: string): Promise<void> {
  if (pid !== child.pid)
    await killProcess({ pid, started: findProcess(pid)?.started ?? '' }) // The jail has exited.
  else if (child.exitCode === null && child.signalCode === null) {
    const exited = once(child, 'exit')
    child.kill('SIGKILL')
    await exited
  }
  for (const name of Object.values(SOCKETS)) await rm(path.join(sockets, name), { force: true })
}
