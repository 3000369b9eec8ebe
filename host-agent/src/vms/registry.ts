/**
 * What runs here, on disk: a folder per VM with its record. Whoever starts next finds every VM that ever began to
 * exist, adopts what lives and removes what does not.
 *
 * The record is written before the first thing it names is made, so that nothing can exist without one.
 */
import { mkdir, readdir, readFile, rename, rm, writeFile } from 'node:fs/promises'
import path from 'node:path'
import type { ProcessMark } from './process.ts'

export type VmRecord = {
  id: string
  fence: number
  state: 'creating' | 'running' | 'dead'
  reason?: string
  /** Of the network namespace. */
  slot?: number
  ip: string
  uid: number
  qemu?: ProcessMark
  base: string
  disk_mib: number
}

export type Registry = ReturnType<typeof openRegistry>

export function openRegistry(folder: string) {
  const homeOf = (id: string) => path.join(folder, id)
  const fileOf = (id: string) => path.join(homeOf(id), 'vm.json')

  return {
    homeOf,
    /** Renamed into place: a reader sees the old record or the new one. A crash of the machine ends all VMs anyway. */
    async write(record: VmRecord): Promise<void> {
      await mkdir(homeOf(record.id), { recursive: true, mode: 0o700 })
      const fresh = `${fileOf(record.id)}.new`
      await writeFile(fresh, JSON.stringify(record), { mode: 0o600 })
      await rename(fresh, fileOf(record.id))
    },
    remove: (id: string): Promise<void> => rm(homeOf(id), { recursive: true, force: true }),
    /** Folders whose record cannot be read hold nothing that lives: they were being made or removed. */
    async list(): Promise<{ records: VmRecord[]; broken: string[] }> {
      await mkdir(folder, { recursive: true, mode: 0o700 })
      const records: VmRecord[] = []
      const broken: string[] = []
      for (const id of await readdir(folder)) {
        const text = await readFile(fileOf(id), 'utf8').catch(() => '')
        try {
          records.push(JSON.parse(text) as VmRecord)
        } catch {
          broken.push(id)
        }
      }
      return { records, broken }
    },
  }
}
