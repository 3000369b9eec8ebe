/**
 * A clone: QEMU with the base's memory mapped privately, the base's devices loaded, and a disk of its own, continued
 * and greeted. It is not yet anybody: `wakeGuest` makes it somebody before anyone is let in.
 */
import { randomBytes } from 'node:crypto'
import { chown } from 'node:fs/promises'
import path from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import type { Undo } from '@warren/kit/undo'
import { GuestGrowAnswer, type GuestIdentityBody, GuestWakeAnswer } from '@warren/protocol'
import type { Deps } from '../deps.ts'
import { type GuestChannel, openGuestChannel } from '../guest/channel.ts'
import { askGuest } from '../guest/client.ts'
import type { Base } from './base.ts'
import { type Launched, launchQemu } from './launch.ts'
import { createOverlay } from './qemu/overlay.ts'
import type { Qmp } from './qemu/qmp.ts'

export type Clone = Launched & { channel: GuestChannel }

export async function startClone(
  deps: Deps,
  clone: {
    id: string
    base: Base
    home: string
    slot: number
    uid: number
    diskMib: number
    cgroups: string[]
    lasting: boolean
  },
  undo: Undo,
  signal: AbortSignal,
): Promise<Clone> {
  const { base, uid } = clone
  const disk = path.join(clone.home, 'disk.qcow2')
  // The size the base was saved with: devices must not differ. A larger disk is grown once it runs.
  await createOverlay(disk, { sizeMib: base.diskMib, backing: { file: base.files.disk, format: 'qcow2' } })
  await chown(disk, uid, uid)
  const launched = await launchQemu(
    deps,
    {
      id: clone.id,
      mode: 'clone',
      slot: clone.slot,
      uid,
      shape: base.shape,
      files: {
        image: { path: base.files.image, flags: 'r' },
        baseDisk: { path: base.files.disk, flags: 'r' },
        disk: { path: disk, flags: 'r+' },
        ram: { path: base.files.ram, flags: deps.machine.readOnlyRam ? 'r' : 'sealed' },
        state: { path: base.files.state, flags: 'r' },
      },
      logFile: path.join(clone.home, 'qemu.log'),
      cgroups: clone.cgroups,
      lasting: clone.lasting,
    },
    undo,
    signal,
  )
  await continueWhenLoaded(launched.qmp, signal)
  const channel = await openGuestChannel(launched.sockets, signal)
  undo.add('channel', () => channel.close())
  if (clone.diskMib > base.diskMib) await growDisk(launched.qmp, channel, clone.diskMib, signal)
  return { ...launched, channel }
}

async function continueWhenLoaded(qmp: Qmp, signal: AbortSignal): Promise<void> {
  for (;;) {
    const { status } = await qmp.run<{ status: string }>('query-status')
    if (status !== 'inmigrate') break
    await delay(1, undefined, { signal })
  }
  await qmp.run('cont')
}

async function growDisk(qmp: Qmp, channel: GuestChannel, diskMib: number, signal: AbortSignal): Promise<void> {
  const bytes = diskMib * 1024 * 1024
  await qmp.run('block_resize', { 'node-name': 'd0', size: bytes })
  await askGuest(
    channel.session,
    { method: 'POST', path: '/grow', body: { device_bytes: bytes }, answer: GuestGrowAnswer },
    signal,
  )
}

/** Time, randomness and identity of its own, each confirmed by the guest, before a user's byte runs. */
export async function wakeGuest(
  channel: GuestChannel,
  identity: GuestIdentityBody & { hostname: string },
  signal: AbortSignal,
): Promise<void> {
  const machineId = randomBytes(16).toString('hex')
  const body = {
    clock: { unix_ns: `${BigInt(Date.now()) * 1_000_000n}` },
    entropy: randomBytes(64).toString('hex'),
    identity: { ...identity, machine_id: machineId, renew_ssh_host_keys: true },
  }
  const answer = await askGuest(
    channel.session,
    { method: 'POST', path: '/wake', body, answer: GuestWakeAnswer },
    signal,
  )
  const seen = answer.identity
  const confirmed =
    answer.clock !== undefined &&
    answer.entropy?.reseeded === true &&
    seen?.hostname === identity.hostname &&
    seen.machine_id === machineId &&
    seen.ssh_host_keys_left === 0
  if (!confirmed)
    throw new Error(`the guest did not become ${identity.hostname}: ${JSON.stringify(answer).slice(0, 500)}`)
}
