/**
 * The memory that QEMU needs beside its guest's, under the worst load that we know a guest can cause, against what is allowed
 * and reserved for it (protocol/src/vmm-memory.ts).
 *
 * The load: the guest uses all of its memory; it runs a program of short jumps, of which each becomes a block of translated
 * code with its entries in the indexes; it keeps many requests to its disk in flight. On a host with KVM the second has no
 * effect.
 */
import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { findShape, vmmOverheadMib } from '@warren/protocol'
import { findCgroupLayout } from '../../../host-agent/src/cgroups/layout.ts'
import type { Measurement, Row, Run } from '../row.ts'
import { Skip } from '../skip.ts'
import { type Instance, instance, LARGE, readQemuPid, SMALL } from '../vm/instance.ts'

const MIB = 1024 * 1024
/** Those with few CPUs have the least memory to hide in; the others boot slowly under emulation. */
const SHAPES = [SMALL, LARGE, 's-2vcpu-2gb', 's-4vcpu-4gb']

export const vmmMemoryRow: Row = {
  name: 'vmm-memory',
  what: `memory of QEMU beside its guest's under the heaviest load (${SHAPES.join(', ')})`,
  unit: 'MiB',
  baseline: 'what is reserved for it',
  target: { ratio: '<=', value: 1 },
  optIn: true,
  measure,
  comparison: { whyNot: "it reads the host agent's records, which differ between versions" },
}

async function measure(run: Run): Promise<Measurement> {
  const warren = await run.open(instance)
  const ours: number[] = []
  const baseline: number[] = []
  for (const id of SHAPES) {
    const shape = findShape(id)!
    const accel = (await usesKvm()) ? 'kvm' : 'tcg'
    const reserved = vmmOverheadMib(shape, accel)
    const sandbox = await warren.api.create(id)
    try {
      const result = await warren.api.sh(sandbox.id, loadScript(shape.vcpu, shape.mem_mib))
      if (result.exit_code !== 0) throw new Error(`the load failed: ${result.stderr}`)
      const used = await measureOverhead(warren, sandbox.id)
      const parts = Object.entries(used).map(([name, mib]) => `${name} ${mib.toFixed(1)}`)
      run.report(`  ${id}: ${parts.join(', ')} MiB of ${reserved}`)
      ours.push(used.anonymous + used.kernel)
      baseline.push(reserved)
    } finally {
      await warren.api.delete(sandbox.id)
    }
  }
  return { ours, baseline, ok: 1 }
}

const usesKvm = async (): Promise<boolean> => {
  const { probeKvm } = await import('../../../host-agent/src/vmm/kvm-probe/probe.ts')
  return (await probeKvm()).usable
}

/** Private memory of the process outside the guest's memory, and what the kernel holds for it. */
async function measureOverhead({ dataDir }: Instance, id: string): Promise<{ anonymous: number; kernel: number }> {
  const pid = await readQemuPid(dataDir, id)
  const smaps = await readFile(`/proc/${pid}/smaps`, 'utf8')
  let anonymous = 0
  for (const mapping of smaps.split(/^(?=[0-9a-f]+-[0-9a-f]+ )/m)) {
    const isGuest = /\/ram$/m.test(mapping.split('\n', 1)[0]!)
    if (!isGuest) anonymous += Number(/^Anonymous:\s+(\d+) kB$/m.exec(mapping)?.[1] ?? 0) / 1024
  }
  return { anonymous, kernel: (await readKernelBytes(pid)) / MIB }
}

async function readKernelBytes(pid: number): Promise<number> {
  const layout = await findCgroupLayout()
  if (!layout) throw new Skip('this machine has no cgroups')
  const groups = await readFile(`/proc/${pid}/cgroup`, 'utf8')
  if (layout.version === 1) {
    const group = /^\d+:[^:]*\bmemory\b[^:]*:(.*)$/m.exec(groups)![1]!
    return Number(await readFile(join(layout.memory, group, 'memory.kmem.usage_in_bytes'), 'utf8'))
  }
  const group = /^0::(.*)$/m.exec(groups)![1]!
  const stat = await readFile(join(layout.root, group, 'memory.stat'), 'utf8')
  return Number(/^kernel (\d+)$/m.exec(stat)?.[1] ?? 0)
}

/** Perl is part of every Debian. */
const loadScript = (vcpu: number, memMib: number): string => `
set -e
mount -o remount,size=100% /dev/shm 2>/dev/null || mount -t tmpfs -o size=100% tmpfs /dev/shm
perl -e '
  my $code = "\\xeb\\x00" x (1 << 20) . "\\x31\\xff\\xb8\\x3c\\x00\\x00\\x00\\x0f\\x05";
  my $size = 120 + length $code;
  print "\\x7fELF\\x02\\x01\\x01", "\\0" x 9, pack("SSLQQQLSSSSSS", 2, 62, 1, 0x400078, 64, 0, 0, 64, 56, 1, 0, 0, 0);
  print pack("LLQQQQQQ", 1, 5, 0, 0x400000, 0x400000, $size, $size, 4096), $code;
' > /var/tmp/jumps
chmod +x /var/tmp/jumps
for cpu in $(seq ${vcpu}); do (for round in 1 2; do /var/tmp/jumps; done) & done
for file in $(seq 32); do (dd if=/dev/urandom of=/var/tmp/file$file bs=64k count=64 oflag=direct 2>/dev/null) & done
wait
for file in $(seq 32); do (dd if=/var/tmp/file$file of=/dev/null bs=4k iflag=direct 2>/dev/null) & done
wait
head -c ${Math.floor(memMib * 0.7)}M /dev/urandom > /dev/shm/full || true
rm -f /dev/shm/full
`
