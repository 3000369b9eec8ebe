/**
 * Runs inside the outer VM: detects KVM as the host agent does, and runs QEMU with the result. A VM boots and is saved,
 * and two clones of it run at the same time. The result is written to the file named by the argument.
 */
import { mkdir, writeFile } from 'node:fs/promises'
import { GuestReady } from '@warren/protocol'
import { callGuest } from '../guest/call-guest.ts'
import { type BareVm, cloneBareVm, makeBareSnapshot, type Parts } from '../testing/bare-vm.ts'
import { detectMachine } from '../vmm/machine.ts'
import { INNER, type InsideResult } from './outer.ts'

const [resultFile = '/root/result.json'] = process.argv.slice(2)
const SHAPE = { vcpu: 1, mem_mib: 128 }
const RESPONSE_LIMIT_MS = 60_000
/** Long, because on an emulated processor the start of Node alone takes seconds. */
const STAGE_LIMIT_MS = 60_000

try {
  await writeFile(resultFile, JSON.stringify(await tryMachine()))
} catch (error) {
  await writeFile(resultFile, JSON.stringify({ failed: (error as Error).stack }))
}
process.exit()

async function tryMachine(): Promise<InsideResult> {
  const { machine, why } = await detectMachine({ stageLimitMs: STAGE_LIMIT_MS, guestCpuMaxMs: STAGE_LIMIT_MS })
  if (machine.accel !== 'kvm') return { machine, why, clones: [] }
  const folder = '/root/vms'
  await mkdir(folder, { recursive: true })
  const parts: Parts = { machine, ...INNER, folder }
  const snapshot = await makeBareSnapshot(parts, SHAPE)
  const vms = await Promise.all([cloneBareVm(parts, snapshot), cloneBareVm(parts, snapshot)])
  return { machine, why, clones: await Promise.all(vms.map(describe)) }
}

async function describe(vm: BareVm): Promise<InsideResult['clones'][number]> {
  await vm.exec('/bin/sh', ['-c', 'echo mine >/root/mine && test "$(cat /root/mine)" = mine'])
  const { enabled } = await vm.qmp.run<{ enabled: boolean }>('query-kvm')
  const signal = AbortSignal.timeout(RESPONSE_LIMIT_MS)
  const ready = await callGuest(vm.channel.session, { method: 'GET', path: '/ready', response: GuestReady }, signal)
  return { kvm: enabled, clocksource: ready.clocksource }
}
