/** Growing the disk of a running sandbox, against the two commands without Warren: to QEMU and to the guest agent. */
import { GuestGrowResponse } from '@warren/protocol'
import { callGuest } from '../../../host-agent/src/guest/call-guest.ts'
import { type BareVm, cloneBareVm, makeBareSnapshot } from '../../../host-agent/src/testing/bare-vm.ts'
import { resizeActiveDisk } from '../../../host-agent/src/vmm/disk/block-nodes.ts'
import { compareTimes, countedPace, rounds, type Timed, time, turnOf } from '../compare-times.ts'
import type { Measurement, Row, Run } from '../row.ts'
import type { Api } from '../vm/api.ts'
import { bareParts } from '../vm/bare-parts.ts'
import { instance, LARGE } from '../vm/instance.ts'

/** Each sandbox grows five times, by 10 GiB. */
const START_MIB = 10_240
const STEP_MIB = 10_240
const MAX_MIB = 61_440
const GROWTHS = 20
const GROW_LIMIT_MS = 60_000

export const resizeRow: Row = {
  name: 'resize-10g',
  what: `POST resize of a running sandbox (${LARGE}) by 10 GiB, until its file system has grown`,
  unit: 'ms',
  baseline: 'block_resize and the ioctl',
  target: { p50: '<=', value: 1_000 },
  measure: measureResize,
  comparison: {
    pace: countedPace,
    async open(run, api) {
      const growing = openSandboxes(run, api)
      return { takeTurn: async () => turnOf(await growing.grow()), close: growing.close }
    },
  },
}

async function measureResize(run: Run): Promise<Measurement> {
  const { api } = await run.open(instance)
  const ours = openSandboxes(run, api)
  const bare = await openBareVms(run)
  try {
    return await compareTimes(run, ours.grow, bare.grow, { rounds: rounds(run, GROWTHS) })
  } finally {
    await ours.close()
    await bare.close()
  }
}

function openSandboxes(run: Run, api: Api) {
  return openGrowing<string>(run, {
    create: async () => (await api.create(LARGE, { disk_mib: START_MIB })).id,
    grow: (id, disk_mib) => api.post(`/v1/sandboxes/${id}/resize`, { disk_mib }),
    delete: (id) => api.delete(id),
  })
}

async function openBareVms(run: Run) {
  const parts = await run.open(bareParts)
  const snapshot = await makeBareSnapshot(parts, { vcpu: 1, mem_mib: 1024 })
  return openGrowing<BareVm>(run, {
    async create() {
      const vm = await cloneBareVm(parts, snapshot)
      // The file system of the image is smaller; that of a sandbox has the size of its disk from the start.
      await growBare(vm, START_MIB)
      return vm
    },
    grow: growBare,
    delete: (vm) => vm.stop(),
  })
}

async function growBare(vm: BareVm, diskMib: number): Promise<void> {
  await resizeActiveDisk(vm.qmp, 0, diskMib)
  const body = { device_bytes: diskMib * 1024 * 1024 }
  const request = { method: 'POST', path: '/grow', body, response: GuestGrowResponse } as const
  await callGuest(vm.channel.session, request, AbortSignal.timeout(GROW_LIMIT_MS))
}

type Growing<Vm> = {
  create(): Promise<Vm>
  grow(vm: Vm, diskMib: number): Promise<unknown>
  delete(vm: Vm): Promise<unknown>
}

/** Grows one VM step by step, and continues with the next one when it has the largest size. Only the growth is timed. */
function openGrowing<Vm>(run: Run, verbs: Growing<Vm>): { grow(): Promise<Timed>; close(): Promise<void> } {
  let current: { vm: Vm; diskMib: number } | undefined
  const close = async () => {
    if (current) await verbs.delete(current.vm)
    current = undefined
  }
  return {
    close,
    async grow() {
      if (current && current.diskMib >= MAX_MIB) await close()
      current ??= { vm: await verbs.create(), diskMib: START_MIB }
      const { vm, diskMib } = current
      current.diskMib += STEP_MIB
      return time(run, () => verbs.grow(vm, diskMib + STEP_MIB))
    },
  }
}
