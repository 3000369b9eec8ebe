/** From the request for a sandbox to the response of its first command. */
import { bootBareVm } from '../../../host-agent/src/testing/bare-vm.ts'
import { compareTimes, countedPace, rounds, SETTLE_MS, settle, type Timed, time, turnOf } from '../compare-times.ts'
import type { Comparison, Measurement, Row, Run } from '../row.ts'
import type { Api } from '../vm/api.ts'
import { bareParts } from '../vm/bare-parts.ts'
import { instance, SMALL } from '../vm/instance.ts'
import { podman } from '../vm/podman.ts'

const SEQUENTIAL = 50
const BURSTS = 4
const BOOTS = 8

export const createRow: Row = {
  name: 'create',
  what: `POST /v1/sandboxes (${SMALL}) and its first exec, one after another with ${SETTLE_MS} ms between`,
  unit: 'ms',
  baseline: 'podman run, same root',
  target: { p50: '<=', value: 250 },
  measure: (run) => measureCreates(run, 1, SEQUENTIAL),
  comparison: compareCreates(1),
}

const burstRow = (width: number): Row => ({
  name: `create-burst-${width}`,
  what: `the same, ${width} at once`,
  unit: 'ms',
  baseline: `${width} podman runs at once`,
  measure: (run) => measureCreates(run, width, BURSTS),
  comparison: compareCreates(width),
})
export const createBurst10Row = burstRow(10)
export const createBurst20Row = burstRow(20)

export const createVsBootRow: Row = {
  name: 'create-vs-boot',
  what: 'the same, one after another, against a cold boot of the same machine to its first exec',
  unit: 'ms',
  baseline: 'cold boot, bare QEMU',
  measure: measureAgainstBoot,
  comparison: { whyNot: 'it is the same request as in the row create, with another baseline; compare create' },
}

async function measureCreates(run: Run, width: number, count: number): Promise<Measurement> {
  const { api } = await run.open(instance)
  const runContainer = await run.open(podman)
  return compareTimes(
    run,
    () => atOnce(width, () => createOne(run, api)),
    () => atOnce(width, () => time(run, () => runContainer('true'))),
    { rounds: rounds(run, count), settle: () => settle(run) },
  )
}

function compareCreates(width: number): Comparison {
  return {
    pace: countedPace,
    open: async (run, api) => ({
      takeTurn: async () => turnOf(await atOnce(width, () => createOne(run, api))),
      async close() {},
    }),
  }
}

const atOnce = (width: number, one: () => Promise<Timed>): Promise<Timed[]> =>
  Promise.all(Array.from({ length: width }, one))

async function measureAgainstBoot(run: Run): Promise<Measurement> {
  const { api } = await run.open(instance)
  const parts = await run.open(bareParts)
  const bootOne = async (): Promise<Timed> => {
    let vm: Awaited<ReturnType<typeof bootBareVm>> | undefined
    const timed = await time(run, async () => {
      vm = await bootBareVm(parts, { vcpu: 1, mem_mib: 256 })
      await vm.exec('/bin/true')
    })
    await vm?.stop()
    return timed
  }
  return compareTimes(run, () => createOne(run, api), bootOne, {
    rounds: rounds(run, BOOTS),
    settle: () => settle(run),
  })
}

/** The sandbox is deleted in the background, after its time was taken. */
async function createOne(run: Run, api: Api): Promise<Timed> {
  let id: string | undefined
  const timed = await time(run, async () => {
    id = (await api.create(SMALL)).id
    await api.exec(id, 'true')
  })
  if (id !== undefined) void api.delete(id).catch(() => {}) // Everything that remains is deleted at the end of the run.
  return timed
}
