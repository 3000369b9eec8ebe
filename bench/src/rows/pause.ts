/**
 * Pause and resume, against the least that QEMU needs for them. For a pause: stopping the CPUs, saving the device
 * state, and writing the same number of bytes durably. For a resume: cloning a saved VM and running its first command.
 */
import { randomBytes } from 'node:crypto'
import { open, readdir, readFile } from 'node:fs/promises'
import path from 'node:path'
import type { Manifest } from '../../../host-agent/src/snapshots/manifest.ts'
import {
  type BareSnapshot,
  bootBareVm,
  cloneBareVm,
  makeBareSnapshot,
  saveState,
} from '../../../host-agent/src/testing/bare-vm.ts'
import { compareTimes, countedPace, rounds, settle, type Timed, time, turnOf } from '../compare-times.ts'
import type { Comparison, Fixture, Measurement, Row, Run } from '../row.ts'
import type { Api } from '../vm/api.ts'
import { bareParts } from '../vm/bare-parts.ts'
import { type Instance, instance, instanceWithoutStandby, LARGE, WITHOUT_STANDBY } from '../vm/instance.ts'

const MIB = 1024 * 1024
const PAUSES = 12
const RESUMES = 20
const MANY = 100
/** The number of first pauses and of last pauses that are compared. */
const FEW = 8
/** The VM of the shape LARGE, without Warren. */
const BARE_SHAPE = { vcpu: 1, mem_mib: 1024 }

/** How much memory of a fresh sandbox that has run one command differs from its base. */
const FRESH_MIB = 13

const pauseRow = (dirtyMib: number, targetMs: number): Row => ({
  name: `pause-${dirtyMib}m`,
  what: `from the 202 of a pause to \`paused\`, of a sandbox (${LARGE}) with about ${dirtyMib} MiB of changed memory`,
  unit: 'ms',
  baseline: 'stop, save, write, fdatasync',
  target: { p50: '<=', value: targetMs },
  measure: (run) => measurePause(run, dirtyMib),
  comparison: {
    pace: countedPace,
    open: async (run, api) => ({
      takeTurn: async () => turnOf(await pauseFresh(run, api, dirtyMib)),
      async close() {},
    }),
  },
})
export const pause13Row = pauseRow(FRESH_MIB, 60)
export const pause115Row = pauseRow(115, 250)

export const resumeRow: Row = {
  name: 'resume',
  what: `POST resume of a sandbox (${LARGE}) that was paused a moment ago, and its first exec`,
  unit: 'ms',
  baseline: 'bare clone and its first exec',
  target: { p50: '<=', value: 150 },
  measure: (run) => measureResume(run, instance),
  comparison: compareResumes(),
}

export const resumeColdRow: Row = {
  ...resumeRow,
  name: 'resume-cold',
  what: 'the same without a standby in memory: from its files, as after hours',
  measure: (run) => measureResume(run, instanceWithoutStandby),
  comparison: { ...compareResumes(), env: WITHOUT_STANDBY },
}

export const pauseBytesRow: Row = {
  name: 'pause-bytes',
  what: 'bytes that a pause writes for memory and devices, against the pages that differ from the base',
  unit: 'MiB',
  baseline: 'dirty memory',
  target: { ratio: '<=', value: 1.1 },
  measure: measureBytes,
  comparison: { whyNot: "it reads the host agent's files, which differ between versions" },
}

export const pauseAgainRow: Row = {
  name: 'pause-100th',
  what: `pauses number ${MANY - FEW + 1} to ${MANY} of one sandbox, against number 2 to ${FEW + 1}`,
  unit: 'ms',
  baseline: 'its first pauses',
  target: { ratio: '<=', value: 1.2 },
  measure: measurePauseAgain,
  comparison: { whyNot: 'its samples are a hundred pauses of one sandbox in sequence, which cannot take turns' },
}

async function measurePause(run: Run, dirtyMib: number): Promise<Measurement> {
  const { api } = await run.open(instance)
  const saveBare = await openBareSave(run, dirtyMib)
  return compareTimes(run, () => pauseFresh(run, api, dirtyMib), saveBare, {
    rounds: rounds(run, PAUSES),
    settle: () => settle(run),
  })
}

async function pauseFresh(run: Run, api: Api, dirtyMib: number): Promise<Timed> {
  const { id } = await api.create(LARGE)
  try {
    await api.exec(id, 'true')
    const moreMib = dirtyMib - FRESH_MIB
    if (moreMib > 0) await api.sh(id, `head -c ${moreMib}M /dev/urandom >/dev/shm/dirty`)
    return await pause(run, api, id)
  } finally {
    await api.delete(id)
  }
}

async function measureResume(run: Run, warren: Fixture<Instance>): Promise<Measurement> {
  const { api } = await run.open(warren)
  const clone = await openBareClone(run)
  const { id } = await api.create(LARGE)
  try {
    return await compareTimes(run, () => pauseAndResume(run, api, id), clone, { rounds: rounds(run, RESUMES) })
  } finally {
    await api.delete(id)
  }
}

function compareResumes(): Comparison {
  return {
    pace: countedPace,
    async open(run, api) {
      const { id } = await api.create(LARGE)
      return {
        takeTurn: async () => turnOf(await pauseAndResume(run, api, id)),
        close: () => api.delete(id),
      }
    },
  }
}

/** Only the resume is timed. */
async function pauseAndResume(run: Run, api: Api, id: string): Promise<Timed> {
  await pause(run, api, id)
  return time(run, () => resume(api, id))
}

/** From the host agent's manifest: the API does not show these numbers. */
async function measureBytes(run: Run): Promise<Measurement> {
  const { api, dataDir } = await run.open(instance)
  const written: number[] = []
  const dirty: number[] = []
  for (let round = 0; round < rounds(run, PAUSES); round++) {
    const { id } = await api.create(LARGE)
    try {
      await api.sh(id, `head -c ${round * 10}M /dev/urandom >/dev/shm/dirty`)
      await pause(run, api, id)
      const { memory, state } = await readManifest(dataDir, id)
      written.push((memory.bytes + state.bytes) / MIB)
      dirty.push(memory.dirty_bytes / MIB)
    } finally {
      await api.delete(id)
    }
  }
  return { ours: written, baseline: dirty, ok: 1 }
}

async function readManifest(dataDir: string, id: string): Promise<Pick<Manifest, 'memory' | 'state'>> {
  const folder = path.join(dataDir, 'snapshots/sandboxes', id)
  const newest = (await readdir(folder)).sort().at(-1)
  if (newest === undefined) throw new Error(`${id} has no saved generation`)
  return JSON.parse(await readFile(path.join(folder, newest), 'utf8'))
}

/** Not interleaved: the hundredth pause comes after the second. */
async function measurePauseAgain(run: Run): Promise<Measurement> {
  const { api } = await run.open(instance)
  const { id } = await api.create(LARGE)
  try {
    const timed: Timed[] = []
    for (let n = 1; n <= MANY; n++) {
      run.signal.throwIfAborted()
      timed.push(await pause(run, api, id))
      await resume(api, id)
      if (n % 20 === 0) run.report(`  pause ${n} of ${MANY}`)
    }
    const ms = timed.map((one) => one.ms)
    return {
      ours: ms.slice(-FEW),
      baseline: ms.slice(1, 1 + FEW),
      ok: timed.filter((one) => one.ok).length / timed.length,
    }
  } finally {
    await api.delete(id)
  }
}

/** Timed from the moment it is accepted, as in the promise. */
export async function pause(run: Run, api: Api, id: string): Promise<Timed> {
  await api.post(`/v1/sandboxes/${id}/pause`)
  return time(run, () => api.until(id, 'paused'))
}

export async function resume(api: Api, id: string): Promise<void> {
  await api.post(`/v1/sandboxes/${id}/resume`)
  await api.until(id, 'running')
  await api.exec(id, 'true')
}

async function openBareSave(run: Run, mib: number): Promise<() => Promise<Timed>> {
  const parts = await run.open(bareParts)
  const vm = await bootBareVm(parts, BARE_SHAPE)
  run.defer(vm.stop)
  const bytes = randomBytes(mib * MIB)
  return async () => {
    const timed = await time(run, async () => {
      await vm.qmp.run('stop')
      await saveState(vm)
      await writeDurably(path.join(parts.folder, 'pages'), bytes)
    })
    await vm.qmp.run('cont')
    return timed
  }
}

async function writeDurably(file: string, bytes: Buffer): Promise<void> {
  const handle = await open(file, 'w')
  try {
    await handle.write(bytes)
    await handle.datasync()
  } finally {
    await handle.close()
  }
}

const bareSnapshot: Fixture<BareSnapshot> = async (run) => makeBareSnapshot(await run.open(bareParts), BARE_SHAPE)

export async function openBareClone(run: Run): Promise<() => Promise<Timed>> {
  const parts = await run.open(bareParts)
  const snapshot = await run.open(bareSnapshot)
  return async () => {
    let vm: Awaited<ReturnType<typeof cloneBareVm>> | undefined
    const timed = await time(run, async () => {
      vm = await cloneBareVm(parts, snapshot)
      await vm.exec('/bin/true')
    })
    await vm?.stop()
    return timed
  }
}
