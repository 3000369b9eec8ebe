/** Memory of an idle sandbox, and memory that an upload takes in the processes it passes through. */
import { readFile } from 'node:fs/promises'
import { type BareVm, bootBareVm } from '../../../host-agent/src/testing/bare-vm.ts'
import { rounds } from '../compare-times.ts'
import type { Measurement, Row, Run } from '../row.ts'
import { bareParts } from '../vm/bare-parts.ts'
import { instance, readPids, readQemuPid, SMALL } from '../vm/instance.ts'

const SANDBOXES = 20
const BOOTED = 3
const MIB = 1024 * 1024
const GIB = 1024 * MIB
const SAMPLE_MS = 100

export const idleMemoryRow: Row = {
  name: 'idle-memory',
  what: `PSS of QEMU for each of ${SANDBOXES} fresh sandboxes (${SMALL}); a page shared by n counts 1/n`,
  unit: 'MiB',
  baseline: 'cold-booted VM',
  target: { p50: '<=', value: 25 },
  measure: measureIdle,
  comparison: { whyNot: "it reads the host agent's records, which differ between versions" },
}

const uploadRow = (name: string, bytes: number, optIn?: true): Row => ({
  name,
  what: `peak growth in memory of the control plane and the host agent during an upload of ${bytes / GIB} GiB`,
  unit: 'MiB',
  baseline: 'both before the upload',
  target: { p50: '<=', value: 64 },
  ...(optIn ? { optIn } : {}),
  measure: (run) => measureUpload(run, bytes),
  comparison: { whyNot: 'it measures the growth of processes in a single long upload, which cannot take turns' },
})
export const uploadRowOf1G = uploadRow('upload-memory', GIB)
export const uploadRowOf10G = uploadRow('upload-10g', 10 * GIB, true)

async function measureIdle(run: Run): Promise<Measurement> {
  const { api, dataDir } = await run.open(instance)
  const parts = await run.open(bareParts)
  const ids: string[] = []
  const booted: BareVm[] = []
  try {
    for (let i = 0; i < SANDBOXES; i++) ids.push((await api.create(SMALL)).id)
    for (let i = 0; i < BOOTED; i++) booted.push(await bootBareVm(parts, { vcpu: 1, mem_mib: 256 }))
    const ours = await Promise.all(ids.map(async (id) => readPssMib(await readQemuPid(dataDir, id))))
    const baseline = await Promise.all(booted.map(({ pid }) => readPssMib(pid)))
    return { ours, baseline, ok: 1 }
  } finally {
    for (const vm of booted) await vm.stop()
    await Promise.all(ids.map((id) => api.delete(id)))
  }
}

/** Proportional set size: summed over all processes it is the memory that the machine really spends. */
const readPssMib = async (pid: number): Promise<number> => readKib(`/proc/${pid}/smaps_rollup`, /^Pss: +(\d+) kB$/m)

async function readKib(file: string, line: RegExp): Promise<number> {
  const kib = line.exec(await readFile(file, 'utf8'))?.[1]
  if (kib === undefined) throw new Error(`${file} has no line ${line}`)
  return Number(kib) / 1024
}

async function measureUpload(run: Run, bytes: number): Promise<Measurement> {
  const warren = await run.open(instance)
  const { controlPlane, hostAgent } = await readPids(warren)
  const { id } = await warren.api.create(SMALL, { disk_mib: 4096 + (2 * bytes) / MIB })
  const readBoth = async () => (await readRssMib(controlPlane)) + (await readRssMib(hostAgent))
  const growths: number[] = []
  const before: number[] = []
  try {
    for (let round = 0; round < rounds(run, bytes > GIB ? 1 : 3); round++) {
      const start = await readBoth()
      let peak = start
      const sampling = setInterval(async () => {
        peak = Math.max(peak, await readBoth())
      }, SAMPLE_MS)
      const startedAt = performance.now()
      try {
        await warren.api.putFile(id, '/var/tmp/large.bin', zeros(bytes))
      } finally {
        clearInterval(sampling)
      }
      const seconds = (performance.now() - startedAt) / 1000
      run.report(`  ${bytes / GIB} GiB in ${seconds.toFixed(1)} s: from ${start.toFixed(0)} to ${peak.toFixed(0)} MiB`)
      growths.push(peak - start)
      before.push(start)
    }
    return { ours: growths, baseline: before, ok: 1 }
  } finally {
    await warren.api.delete(id)
  }
}

const readRssMib = (pid: number): Promise<number> => readKib(`/proc/${pid}/status`, /^VmRSS:\s+(\d+) kB$/m)

function* zeros(bytes: number): Generator<Buffer> {
  const piece = Buffer.alloc(MIB)
  for (let sent = 0; sent < bytes; sent += piece.length) yield piece
}
