/** What the metrics of idle sandboxes cost the host, beside what it costs to read the same files of the kernel. */
import { type ChildProcess, execFile, spawn } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { appendFile, mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { promisify } from 'node:util'
import { openCgroups } from '../../../host-agent/src/cgroups/cgroups.ts'
import { findCgroupLayout } from '../../../host-agent/src/cgroups/layout.ts'
import { Rings } from '../../../host-agent/src/metrics/rings.ts'
import { type SampledVm, Sampler } from '../../../host-agent/src/metrics/sampler.ts'
import { findProcess, findResidentBytes, type ProcessHandle } from '../../../host-agent/src/vmm/process.ts'
import { interleave } from '../interleave.ts'
import type { Measurement, Row, Run } from '../row.ts'
import { Skip } from '../skip.ts'

const SANDBOXES = 100
/** CPU time of one tick is too short to be measured alone. */
const TICKS_PER_TURN = 20
const STEP_MS = 10_000
const MIB = 1024 * 1024
const execute = promisify(execFile)

export const metricsSamplingRow: Row = {
  name: 'metrics-sampling',
  what: `CPU time of one sampling of ${SANDBOXES} idle sandboxes, of which there is one in 10 s: 100 ms are 1 % of a core`,
  unit: 'ms',
  baseline: 'cat of the same files of the kernel',
  target: { p50: '<=', value: 100 },
  measure,
  comparison: { whyNot: 'the versions before 0.3 have no metrics of sandboxes' },
}

type IdleVm = SampledVm & { process: ProcessHandle }

/**
 * The cgroups and processes are real, with a sleeping process instead of an idle QEMU: the sampler does not ask an idle
 * guest. Network counters are not read for samples, because the bandwidth accounting has read them.
 */
async function measure(run: Run): Promise<Measurement> {
  const layout = process.getuid?.() === 0 ? await findCgroupLayout() : undefined
  if (!layout) throw new Skip('it needs root, and cgroups with a cpu and a memory controller')
  const cgroups = await openCgroups(layout, `bench${randomBytes(3).toString('hex')}`)
  run.defer(() => cgroups.close())
  const folder = await mkdtemp(path.join(tmpdir(), 'warren-bench-metrics-'))
  run.defer(() => rm(folder, { recursive: true, force: true }))
  const vms: IdleVm[] = []
  const files: string[] = []
  for (let i = 0; i < SANDBOXES; i++) {
    const vmmId = `idle-${i}`
    const { procs } = await cgroups.create(vmmId, { memoryBytes: 64 * MIB, threads: 10 })
    const child = spawn('sleep', ['infinity'], { stdio: 'ignore' })
    run.defer(() => end(child, () => cgroups.remove(vmmId)))
    for (const file of procs) await appendFile(file, `${child.pid}`)
    const id = `sb-${String(i).padStart(26, '0')}`
    vms.push({ id, vmmId, slot: i, memMib: 256, diskMib: 10_240, process: findProcess(child.pid!)! })
    const usage = layout.version === 2 ? 'cpu.stat' : 'cpuacct.usage'
    files.push(path.join(path.dirname(procs.at(-1)!), usage), `/proc/${child.pid}/stat`)
  }

  let elapsedMs = 0
  const counts = { sentBytes: 0, receivedBytes: 0 }
  const sampler = new Sampler<IdleVm>({
    listVms: () => vms,
    findVm: (id) => vms.find((vm) => vm.id === id),
    readCpuNs: ({ vmmId }) => cgroups.readCpuNs(vmmId),
    findResidentBytes: (vm) => findResidentBytes(vm.process),
    readNetwork: async (slots) => new Map(slots.map((slot) => [slot, { atMs: elapsedMs, ...counts }])),
    askGuest: async () => ({ memoryUsedBytes: 0, storageUsedBytes: 0 }),
    rings: new Rings(folder),
    log: { warn: run.report, debug: () => {} } as never, // Only these two are used.
    now: () => 1_780_000_000_000 + elapsedMs,
    monotonicMs: () => elapsedMs,
  })
  const sampleOften = async () => {
    const before = process.cpuUsage()
    for (let tick = 0; tick < TICKS_PER_TURN; tick++) {
      elapsedMs += STEP_MS
      await sampler.sample()
    }
    const { user, system } = process.cpuUsage(before)
    return (user + system) / 1_000 / TICKS_PER_TURN
  }
  await sampleOften()
  const turns = await interleave(run, { ours: sampleOften, baseline: () => readOften(files) })
  const stored = vms.filter(({ id }) => sampler.getSeries(id).points.length > 0).length
  return { ...turns, ok: stored / SANDBOXES }
}

/** The `time` of bash has milliseconds. */
async function readOften(files: string[]): Promise<number> {
  const script = `TIMEFORMAT='%U %S'; time (for ((i = 0; i < ${TICKS_PER_TURN}; i++)); do cat "$@" > /dev/null; done)`
  const { stderr } = await execute('bash', ['-c', script, 'bash', ...files])
  const [user, system] = stderr.trim().split(' ').map(Number)
  return ((user! + system!) * 1_000) / TICKS_PER_TURN
}

async function end(child: ChildProcess, removeCgroup: () => Promise<void>): Promise<void> {
  child.kill('SIGKILL')
  await removeCgroup()
}
