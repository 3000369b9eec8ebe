/**
 * The sandboxes of this host, on disk: a file each. Whoever starts next finds every sandbox that was acknowledged,
 * adopts the bodies that live and removes what no record names.
 *
 * A record changes at the moment a step is done, never before: what was under way when a host agent died has not
 * happened, except for a pause whose generation is on disk already (adopt.ts).
 */
import { mkdir, readdir, readFile, rename, rm, writeFile } from 'node:fs/promises'
import path from 'node:path'
import { writeFileDurably } from '@warren/kit/files'
import type { HostCounts, HostVmSignal } from '@warren/protocol'
import type { BodyRecord } from './body.ts'

export type VmRecord = {
  id: string
  fence: number
  state: 'creating' | 'running' | 'pausing' | 'paused' | 'resuming' | 'dead'
  /** Why it is dead. */
  reason?: string
  ip: string
  disk_mib: number
  /** The last one saved, or the one it was forked with. */
  generation?: number
  /** Forked and never resumed: still a copy of its source. */
  unborn?: true
  /** What its guest asks for, until it is paused or deleted. */
  signal?: HostVmSignal
  /** Of its network, when its last body gave up its slot. */
  counts?: HostCounts
  /** While it runs; of a dead one only what its disk needs. */
  body?: BodyRecord
  /** The last operation that was done, and what was said about it: asked again, the answer is the same. */
  done?: { operation: string; fence: number; answer: object }
}

export type Registry = ReturnType<typeof openRegistry>

export function openRegistry(folder: string) {
  const fileOf = (id: string) => path.join(folder, `${id}.json`)

  return {
    /** A reader sees the old record or the new one. A machine that crashes ends all bodies anyway. */
    async write(record: VmRecord): Promise<void> {
      await mkdir(folder, { recursive: true, mode: 0o700 })
      const fresh = `${fileOf(record.id)}.new`
      await writeFile(fresh, JSON.stringify(record), { mode: 0o600 })
      await rename(fresh, fileOf(record.id))
    },
    /** Of what must be there after a crash of the machine, too: a sandbox that is nothing but saved. */
    writeDurably: (record: VmRecord): Promise<void> => writeFileDurably(fileOf(record.id), JSON.stringify(record)),
    remove: (id: string): Promise<void> => rm(fileOf(id), { force: true }),
    removeFile: (name: string): Promise<void> => rm(path.join(folder, name), { recursive: true, force: true }),
    async list(): Promise<{ records: VmRecord[]; broken: string[] }> {
      await mkdir(folder, { recursive: true, mode: 0o700 })
      const records: VmRecord[] = []
      const broken: string[] = []
      for (const name of await readdir(folder)) {
        try {
          if (!/^sb-\w+\.json$/.test(name)) throw new Error('half written')
          records.push(JSON.parse(await readFile(path.join(folder, name), 'utf8')) as VmRecord)
        } catch {
          broken.push(name)
        }
      }
      return { records, broken }
    },
  }
}
