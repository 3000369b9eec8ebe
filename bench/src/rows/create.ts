/** From the request for a sandbox to the answer of its first command. */
import { bootBareVm } from '../../../host-agent/src/testing/bare-vm.ts'
import { compareTimes, rounds, SETTLE_MS, settle, type Timed, time } from '../compare-times.ts'
import type { Measurement, Row, Run } from '../row.ts'
import { bareParts } from '../vm/bare-parts.ts'
import { SMALL, vmBox } from '../vm/box.ts'
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
}

const burstRow = (width: number): Row => ({
  name: `create-burst-${width}`,
  what: `the same, ${width} at once`,
  unit: 'ms',
  baseline: `${width} podman runs at once`,
  measure: (run) => measureCreates(run, width, BURSTS),
})
export const createBurst10Row = burstRow(10)
export const createBurst20Row = burstRow(20)

export const createVsBootRow: Row = {
  name: 'create-vs-boot',
  what: 'the same, one after another, against a cold boot of the same machine to its first exec',
  unit: 'ms',
  baseline: 'cold boot, bare QEMU',
  measure: measureAgainstBoot,
}

async function measureCreates(run: Run, width: number, count: number): Promise<Measurement> {
  const createOne = await openCreate(run)
  const runContainer = await run.open(podman)
  const atOnce = (one: () => Promise<Timed>) => () => Promise.all(Array.from({ length: width }, one))
  return compareTimes(
    run,
    atOnce(createOne),
    atOnce(() => time(run, () => runContainer('true'))),
    { rounds: rounds(run, count), settle: () => settle(run) },
  )
}

async function measureAgainstBoot(run: Run): Promise<Measurement> {
  const createOne = await openCreate(run)
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
  return compareTimes(run, createOne, bootOne, { rounds: rounds(run, BOOTS), settle: () => settle(run) })
}

/** Gives what times one; the sandbox is deleted after its time was taken, in the background. */
async function openCreate(run: Run): Promise<() => Promise<Timed>> {
  const { api } = await run.open(vmBox)
  return async () => {
    let id: string | undefined
    const timed = await time(run, async () => {
      id = (await api.create(SMALL)).id
      await api.exec(id, 'true')
    })
    if (id !== undefined) void api.delete(id).catch(() => {}) // Everything is deleted at the end.
    return timed
  }
}
