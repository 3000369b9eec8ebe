/**
 * Runs inside the outer VM: detects KVM as the host agent does, and runs QEMU with the result, in its jail. A VM boots and is
 * saved, and two clones of it run at the same time. The result is written to the file named by the argument.
 *
 * /dev/kvm is open to its group only, as distributions have it.
 */
import { chmodSync, chownSync, readFileSync } from 'node:fs'
import { mkdir, writeFile } from 'node:fs/promises'
import { GuestReady } from '@warren/protocol'
import { callGuest } from '../guest/call-guest.ts'
import { type BareVm, cloneBareVm, makeBareSnapshot, type Parts } from '../testing/bare-vm.ts'
import { KVM_DEVICE } from '../vmm/kvm-access.ts'
import { detectMachine } from '../vmm/machine.ts'
import { INNER, type InsideResult, JAIL, KVM_GROUP } from './outer.ts'

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
  chownSync(KVM_DEVICE, 0, KVM_GROUP)
  chmodSync(KVM_DEVICE, 0o660)
  const { machine, why } = await detectMachine({ stageLimitMs: STAGE_LIMIT_MS, guestCpuMaxMs: STAGE_LIMIT_MS })
  if (machine.accel !== 'kvm') return { machine, why, clones: [] }
  const folder = '/root/vms'
  await mkdir(folder, { recursive: true })
  const parts: Parts = { machine, ...INNER, folder, jail: JAIL }
  const snapshot = await makeBareSnapshot(parts, SHAPE)
  const vms = await Promise.all([cloneBareVm(parts, snapshot), cloneBareVm(parts, snapshot)])
  return { machine, why, clones: await Promise.all(vms.map(describe)) }
}

async function describe(vm: BareVm): Promise<InsideResult['clones'][number]> {
  await vm.exec('/bin/sh', ['-c', 'echo mine >/root/mine && test "$(cat /root/mine)" = mine'])
  const { enabled } = await vm.qmp.run<{ enabled: boolean }>('query-kvm')
  const signal = AbortSignal.timeout(RESPONSE_LIMIT_MS)
  const ready = await callGuest(vm.channel.session, { method: 'GET', path: '/ready', response: GuestReady }, signal)
  return { kvm: enabled, clocksource: ready.clocksource, ...describeProcess(vm.pid) }
}

function describeProcess(pid: number): { uid: number; groups: number[]; capabilities: string; seccomp: string } {
  const status = readFileSync(`/proc/${pid}/status`, 'utf8')
  const read = (name: string) => new RegExp(`^${name}:\\s*(.*)$`, 'm').exec(status)?.[1]?.trim() ?? ''
  const numbers = (name: string) => read(name).split(/\s+/).filter(Boolean).map(Number)
  return { uid: numbers('Uid')[0]!, groups: numbers('Groups'), capabilities: read('CapBnd'), seccomp: read('Seccomp') }
}
