/** One of the threads of workers.ts: does one job at a time and answers. */
import { closeSync, fdatasyncSync, openSync } from 'node:fs'
import path from 'node:path'
import { parentPort } from 'node:worker_threads'
import { mergeLayers } from '../vmm/disk/qcow2/merge.ts'
import { loadMemory } from './memory/load.ts'
import { saveMemory } from './memory/save.ts'
import { checkFile, type Sums, sumFile } from './sums.ts'

/** On disk for certain, then summed up: what is read is what was written, from memory still. */
function seal({ file }: { file: string }): Sums {
  return withFile(file, (fd) => {
    const sums = sumFile(fd)
    fdatasyncSync(fd)
    return sums
  })
}

const sync = ({ file }: { file: string }): void => withFile(file, (fd) => fdatasyncSync(fd))

const check = ({ file, sums }: { file: string; sums: Sums }): string | undefined =>
  withFile(file, (fd) => checkFile(fd, sums))

/** What was read must be what was saved: a sum over damaged bytes would make them good. So it is looked at afterwards. */
function mergeWhole({ layers, out, backing }: { layers: Layer[]; out: string; backing: string }): Sums {
  const merged = mergeLayers({ files: layers.map(({ file }) => file), out, backing })
  for (const { file, sums } of layers) {
    const wrong = check({ file, sums })
    if (wrong !== undefined) throw new Error(`${path.basename(file)} is damaged: ${wrong}`)
  }
  return merged
}

type Layer = { file: string; sums: Sums }

function withFile<T>(file: string, use: (fd: number) => T): T {
  const fd = openSync(file, 'r')
  try {
    return use(fd)
  } finally {
    closeSync(fd)
  }
}

/** Of bases: gigabytes, and nobody stands still for them. */
const [sealBase, checkBase] = [seal, check]

const JOBS = { saveMemory, loadMemory, mergeWhole, seal, sync, check, sealBase, checkBase }
export type Jobs = typeof JOBS
export type JobName = keyof Jobs
export type JobRequest = { id: number; job: JobName; options: never }
export type JobReply = { id: number; result: unknown } | { id: number; error: { message: string; code?: string } }

parentPort?.on('message', ({ id, job, options }: JobRequest) => {
  let reply: JobReply
  try {
    reply = { id, result: JOBS[job](options) }
  } catch (error) {
    const { message, code } = error as NodeJS.ErrnoException
    reply = { id, error: { message, ...(code === undefined ? {} : { code }) } }
  }
  parentPort?.postMessage(reply)
})
