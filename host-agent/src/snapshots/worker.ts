/** One thread of worker-pool.ts. It runs one job at a time and sends back its result. */
import { closeSync, fdatasyncSync, openSync } from 'node:fs'
import path from 'node:path'
import { parentPort } from 'node:worker_threads'
import type { RpcRequest } from '../rpc/protocol.ts'
import { serveRequest } from '../rpc/serve-request.ts'
import { flattenDisk } from '../vmm/disk/qcow2/flatten.ts'
import { mergeLayers } from '../vmm/disk/qcow2/merge.ts'
import { type Checksums, checkFile, computeChecksums } from './checksums.ts'
import { loadMemory } from './memory/load.ts'
import { saveMemory } from './memory/save.ts'

/** Computes the checksums of a file and syncs it. The data is still in the page cache, so it is what was written. */
function seal({ file }: { file: string }): Checksums {
  return withFile(file, (fd) => {
    const checksums = computeChecksums(fd)
    fdatasyncSync(fd)
    return checksums
  })
}

const sync = ({ file }: { file: string }): void => withFile(file, (fd) => fdatasyncSync(fd))

const check = ({ file, checksums }: { file: string; checksums: Checksums }): string | undefined =>
  withFile(file, (fd) => checkFile(fd, checksums))

/** Verifies the layers after they were read, because new checksums over damaged data would hide the damage. */
function mergeAndVerify({ layers, out, backing }: { layers: Layer[]; out: string; backing: string }): Checksums {
  const merged = mergeLayers({ files: layers.map(({ file }) => file), out, backing })
  for (const { file, checksums } of layers) {
    const wrong = check({ file, checksums })
    if (wrong !== undefined) throw new Error(`${path.basename(file)} is damaged: ${wrong}`)
  }
  return merged
}

type Layer = { file: string; checksums: Checksums }

function withFile<T>(file: string, use: (fd: number) => T): T {
  const fd = openSync(file, 'r')
  try {
    return use(fd)
  } finally {
    closeSync(fd)
  }
}

/** The same jobs for bases, under names that make them slow jobs (worker-pool.ts): bases have gigabytes. */
const [sealBase, checkBase] = [seal, check]
/** Not a slow job: a live fork waits for it. */
const mergeFrozen = mergeAndVerify

const JOBS = {
  saveMemory,
  loadMemory,
  mergeAndVerify,
  mergeFrozen,
  seal,
  sync,
  check,
  sealBase,
  checkBase,
  flattenDisk,
}
export type Jobs = typeof JOBS
export type JobName = keyof Jobs

parentPort?.on('message', async (request: RpcRequest) => parentPort?.postMessage(await serveRequest(JOBS, request)))
