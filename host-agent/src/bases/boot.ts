/** The one cold boot of a base: until the guest responds and is warm, then its memory, devices and disk are saved. */
import { chown, mkdir, readFile, rename, rm, truncate, writeFile } from 'node:fs/promises'
import type { ClientHttp2Session } from 'node:http2'
import path from 'node:path'
import { errorText } from '@warren/kit/error-text'
import { GUEST_PROTOCOL, GuestGrowResponse, GuestIdentityResponse } from '@warren/protocol'
import type { Deps } from '../deps.ts'
import { callGuest } from '../guest/call-guest.ts'
import { openGuestChannel } from '../guest/channel.ts'
import { hasOperatorSettings } from '../guest/operator-settings.ts'
import { runInGuest } from '../guest/run-in-guest.ts'
import { Undo } from '../undo.ts'
import { diskFile, inWork, STATE_FILE } from '../vmm/args.ts'
import { createOverlay } from '../vmm/disk/qcow2/overlay.ts'
import { guestSocketsIn, socketFolderOf } from '../vmm/folders.ts'
import { launchQemu } from '../vmm/launch.ts'
import { createVmmCgroup } from '../vmm/memory.ts'
import type { Qmp } from '../vmm/qmp.ts'
import type { Base } from './base.ts'
import type { Build } from './builds.ts'
import { waitForClock } from './wait-for-clock.ts'

/**
 * Of one attempt. A guest that panics ends its attempt at once, so this is only for one that hangs. It must not end slow
 * boots: under emulation four vCPUs take half a minute on a quiet machine, and several times that on a busy one.
 */
const BOOT_LIMIT_MS = 240_000
/** Of the guest's console, in the error when a boot fails. */
const CONSOLE_LINES = 6

export async function bootAndSave(deps: Deps, base: Base, build: Build): Promise<void> {
  const signal = AbortSignal.any([AbortSignal.timeout(BOOT_LIMIT_MS), deps.stopping])
  const undo = new Undo()
  const id = `base-${base.key}`
  const consoleFile = path.join(base.folder, 'console.log')
  const work = path.join(base.folder, 'work')
  const disk = path.join(work, diskFile(0))
  try {
    const cgroups = await createVmmCgroup(deps, id, base.shape, undo)
    if (build.isBackground) await lowerPriority(deps, id, build, undo)
    const qmp = await boot(deps, base, { id, consoleFile, work, disk, cgroups }, undo, signal)
    undo.add('abort listener', qmp.closeOnAbort(deps.stopping))
    const exited = qmp.closed.then(() => {
      throw new Error('the guest panicked or powered off')
    })
    const channel = await Promise.race([openGuestChannel(guestSocketsIn(socketFolderOf(deps, id)), signal), exited])
    undo.add('channel', () => channel.close())
    await Promise.race([applySettings(deps, channel.session, signal), exited])
    await Promise.race([warmUp(channel.session, signal), exited])
    exited.catch(() => {}) // From here on the exit is intended.
    channel.close()
    await qmp.run('stop')
    await qmp.run('xen-save-devices-state', { filename: inWork(STATE_FILE), live: false })
    await qmp.run('quit').catch(() => {}) // It may exit before it responds.
    await qmp.closed
    deps.stopping.throwIfAborted() // Otherwise the connection may have been closed before QEMU had saved everything.
    await rename(disk, base.files.disk)
    await rename(path.join(work, STATE_FILE), base.files.state)
    await rm(work, { recursive: true })
  } catch (error) {
    const lines = (await readFile(consoleFile, 'utf8').catch(() => '')).trimEnd().split('\n')
    const tail = lines.slice(-CONSOLE_LINES).join('\n')
    throw new Error(`failed to boot: ${errorText(error)}${tail === '' ? '' : `\n${tail}`}`, { cause: error })
  } finally {
    await undo.run(deps.log)
  }
}

type BootPlan = { id: string; consoleFile: string; work: string; disk: string; cgroups: string[] }

/** The boot then gets only the CPU time that sandboxes leave, until a request waits for it. */
async function lowerPriority(deps: Deps, id: string, build: Build, undo: Undo): Promise<void> {
  await deps.cgroups.setBackground(id, true)
  const bringForward = () =>
    void deps.cgroups
      .setBackground(id, false)
      .catch((error) => deps.log.warn({ err: error, base: id }, 'failed to give a boot more CPU time'))
  build.onForeground = bringForward
  undo.add('switch to the foreground', () => delete build.onForeground)
  if (!build.isBackground) bringForward() // A request joined meanwhile.
}

async function boot(
  deps: Deps,
  base: Base,
  { id, consoleFile, work, disk, cgroups }: BootPlan,
  undo: Undo,
  signal: AbortSignal,
): Promise<Qmp> {
  const slot = await deps.network.slots.take()
  undo.add('slot', () => deps.network.slots.release(slot))
  const uid = deps.uidOf(slot)
  await mkdir(work, { mode: 0o700 })
  await createOverlay(disk, { sizeMib: base.diskMib, backing: { file: base.files.image, format: 'raw' } })
  for (const file of [base.files.ram, consoleFile]) await writeFile(file, '')
  await truncate(base.files.ram, base.shape.mem_mib * 1024 * 1024)
  for (const file of [work, disk, base.files.ram, consoleFile]) await chown(file, uid, uid)
  const { qmp } = await launchQemu(
    deps,
    {
      id,
      start: 'base',
      machineType: deps.machine.type,
      hardware: deps.machine.hardware,
      slot,
      uid,
      shape: base.shape,
      files: {
        image: { path: base.files.image, flags: 'r' },
        ram: { path: base.files.ram, flags: 'r+' },
        kernel: { path: deps.kernel.vmlinuz, flags: 'r' },
        initrd: { path: deps.initramfs.path, flags: 'r' },
        console: { path: consoleFile, flags: 'w' },
      },
      workFolder: work,
      diskMib: base.diskMib,
      layers: [],
      logFile: path.join(base.folder, 'qemu.log'),
      cgroups,
      outlivesHostAgent: false,
    },
    undo,
    signal,
  )
  return qmp
}

async function applySettings(deps: Deps, session: ClientHttp2Session, signal: AbortSignal): Promise<void> {
  const settings = deps.operatorSettings
  if (!hasOperatorSettings(settings)) return
  const request = { method: 'POST', path: '/identity', body: settings, response: GuestIdentityResponse } as const
  const applied = await callGuest(session, request, signal)
  if (applied.ca_certificates !== settings.ca_certificates.length) {
    throw new Error(`the guest installed ${applied.ca_certificates} of ${settings.ca_certificates.length} certificates`)
  }
}

/** Does what every sandbox does first, so that clones find the pages in memory and the code translated. */
async function warmUp(session: ClientHttp2Session, signal: AbortSignal): Promise<void> {
  const ready = await waitForClock(session, signal)
  if (ready.protocol !== GUEST_PROTOCOL.CURRENT) {
    throw new Error(`the guest agent reports protocol ${ready.protocol}, expected ${GUEST_PROTOCOL.CURRENT}`)
  }
  await callGuest(session, { method: 'POST', path: '/grow', body: {}, response: GuestGrowResponse }, signal)
  for (let i = 0; i < 3; i++) await runInGuest(session, { cmd: '/bin/sh', args: ['-c', 'true'] }, signal)
  await runInGuest(session, { cmd: 'sync' }, signal)
}
