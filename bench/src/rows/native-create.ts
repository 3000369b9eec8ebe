/** Creating a sandbox that starts at once: what the control plane, the host agent and the network take. */
import { execFile } from 'node:child_process'
import { promisify } from 'node:util'
import { compareTimes, rounds, type Timed, time, turnOf } from '../compare-times.ts'
import { interleave } from '../interleave.ts'
import { NATIVE, nativeInstance } from '../native/instance.ts'
import type { Measurement, Row, Run } from '../row.ts'
import type { Api } from '../vm/api.ts'
import { readEndedChildrenCpuMs, readWarrenCpuMs } from '../vm/cpu-time.ts'
import { SMALL } from '../vm/instance.ts'

const BASELINE = 'unshare, new namespaces alone'
const CREATES = 200
const AT_ONCE = 32
/** Of one turn with many callers. */
const TURN_CREATES = 96
/** Enough that the resolution of the kernel's counters, 10 ms for each process, does not matter. */
const COUNTED_CREATES = 40
const COUNTED_AT_ONCE = 4

export const nativeCreateRow: Row = {
  name: 'native-create',
  what: 'POST /v1/sandboxes of one that starts at once, deleted before the next',
  unit: 'ms',
  baseline: BASELINE,
  target: { p50: '<=', value: 12 },
  measure: measureCreates,
  comparison: {
    env: NATIVE,
    open: async (run, api) => ({ takeTurn: async () => turnOf(await createOne(run, api)), async close() {} }),
  },
}

export const nativeCreateRateRow: Row = {
  name: 'native-create-rate',
  what: `the same with ${AT_ONCE} callers, each deleting its own`,
  unit: 'req/s',
  baseline: BASELINE,
  target: { p50: '>=', value: 150 },
  measure: measureRate,
  comparison: {
    env: NATIVE,
    open: async (run, api) => ({
      async takeTurn() {
        let failed = 0
        const rate = await rateOf(async () => {
          if (!(await createOne(run, api)).ok) failed++
        })
        return { samples: [rate], failed }
      },
      async close() {},
    }),
  },
}

export const nativeCreateCpuRow: Row = {
  name: 'native-create-cpu',
  what: 'processor time of all processes of Warren for a create and its delete',
  unit: 'ms',
  baseline: BASELINE,
  measure: measureCpu,
  comparison: {
    env: NATIVE,
    open: async (run, api, dataDir) => ({
      takeTurn: async () => ({ samples: [await cpuOf(run, api, dataDir)], failed: 0 }),
      async close() {},
    }),
  },
}

async function measureCreates(run: Run): Promise<Measurement> {
  const { api } = await run.open(nativeInstance)
  for (let warmUp = 0; warmUp < 10; warmUp++) await createOne(run, api)
  return compareTimes(
    run,
    () => createOne(run, api),
    () => time(run, unshare),
    { rounds: rounds(run, CREATES) },
  )
}

/** The time of the create alone. */
async function createOne(run: Run, api: Api): Promise<Timed> {
  let id: string | undefined
  const timed = await time(run, async () => {
    id = (await api.create(SMALL)).id
  })
  if (id !== undefined) await api.delete(id)
  return timed
}

async function measureRate(run: Run): Promise<Measurement> {
  const { api } = await run.open(nativeInstance)
  let ok = 0
  let all = 0
  const createCounted = async () => {
    all++
    if ((await createOne(run, api)).ok) ok++
  }
  const turns = await interleave(run, { ours: () => rateOf(createCounted), baseline: () => rateOf(unshare) })
  return { ...turns, ok: ok / all }
}

/** Per second, with so many callers at once. */
async function rateOf(work: () => Promise<unknown>): Promise<number> {
  const startedAt = performance.now()
  await repeat(TURN_CREATES, AT_ONCE, work)
  return TURN_CREATES / ((performance.now() - startedAt) / 1000)
}

async function measureCpu(run: Run): Promise<Measurement> {
  const { api, dataDir } = await run.open(nativeInstance)
  await cpuOf(run, api, dataDir)
  const turns = await interleave(run, { ours: () => cpuOf(run, api, dataDir), baseline: cpuOfUnshare })
  return { ...turns, ok: 1 } // A create that fails ends the row: it has no time.
}

async function cpuOf(run: Run, api: Api, dataDir: string): Promise<number> {
  const before = readWarrenCpuMs(dataDir)
  await repeat(COUNTED_CREATES, COUNTED_AT_ONCE, async () => {
    if (!(await createOne(run, api)).ok) throw new Error('a create failed')
  })
  return (readWarrenCpuMs(dataDir) - before) / COUNTED_CREATES
}

async function cpuOfUnshare(): Promise<number> {
  const before = readEndedChildrenCpuMs()
  await repeat(COUNTED_CREATES, COUNTED_AT_ONCE, unshare)
  return (readEndedChildrenCpuMs() - before) / COUNTED_CREATES
}

async function repeat(count: number, atOnce: number, work: () => Promise<unknown>): Promise<void> {
  let begun = 0
  const workInTurn = async () => {
    while (begun++ < count) await work()
  }
  await Promise.all(Array.from({ length: atOnce }, workInTurn))
}

const unshare = (): Promise<unknown> =>
  promisify(execFile)('unshare', ['--mount', '--pid', '--net', '--ipc', '--uts', '--fork', 'true'])
