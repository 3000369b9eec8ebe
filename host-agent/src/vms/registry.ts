/**
 * The sandboxes of this host, on disk: a file each. Whoever starts next finds every sandbox that was acknowledged,
 * adopts the bodies that live and removes what no record names.
 *
 * A record changes at the moment a step is done, never before: what was under way when a host agent died has not
 * happened, except for a pause whose generation is on disk already (adopt.ts).
 */
import { mkdir, readdir, readFile, rm } from 'node:fs/promises'
import path from 'node:path'
import { writeFileDurably } from '@warren/kit/files'
import type { HostCounts, HostVmSignal } from '@warren/protocol'
import type { VmmRecord } from '../vmm/vmm.ts'
import type { SavedFlows } from './flows.ts'

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
  flows?: SavedFlows[]
  /** While it runs; of a dead one only what its disk needs. */
  body?: VmmRecord
  /** The last operation that was done, and what was said about it: asked again, the answer is the same. */
  done?: { operation: string; fence: number; answer: object }
}

const RECORD = /^(sb-\w+)\.json$/

export type Registry = ReturnType<typeof openRegistry>

export function openRegistry(folder: string) {
  const fileOf = (id: string) => path.join(folder, `${id}.json`)
  /** One write of a record at a time: the last word is the last on disk. */
  const writing = new Map<string, Promise<void>>()

  return {
    /** On disk when it is done, also if the machine loses its power; a reader sees the old record or the new one. */
    write(record: VmRecord): Promise<void> {
      const before = writing.get(record.id) ?? Promise.resolve()
      const work = before.catch(() => {}).then(() => writeFileDurably(fileOf(record.id), JSON.stringify(record)))
      writing.set(record.id, work)
      return work.finally(() => {
        if (writing.get(record.id) === work) writing.delete(record.id)
      })
    },
    async remove(id: string): Promise<void> {
      await writing.get(id)?.catch(() => {})
      await rm(fileOf(id), { force: true })
    },
    /** Of those that cannot be read only the names: by them the sandboxes are known all the same. Changes nothing. */
    async list(): Promise<{ records: VmRecord[]; broken: string[] }> {
      await mkdir(folder, { recursive: true, mode: 0o700 })
      const records: VmRecord[] = []
      const broken: string[] = []
      for (const name of await readdir(folder)) {
        const [, id] = RECORD.exec(name) ?? []
        if (id === undefined) continue
        try {
          records.push(JSON.parse(await readFile(path.join(folder, name), 'utf8')) as VmRecord)
        } catch {
          broken.push(id)
        }
      }
      return { records, broken }
    },
    /** What a write that was killed left, and whatever else is no record. */
    async tidy(): Promise<void> {
      for (const name of await readdir(folder)) {
        if (!RECORD.test(name)) await rm(path.join(folder, name), { recursive: true, force: true })
      }
    },
  }
}
