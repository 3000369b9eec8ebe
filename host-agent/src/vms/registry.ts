/**
 * The records of this host's sandboxes on disk, one file each. The next host agent finds every sandbox that was
 * acknowledged, adopts the VMMs that still run and removes whatever no record names (adopt.ts).
 *
 * A record is written when a step is done, never before: whatever was under way when a host agent died has not happened,
 * except for a pause whose generation is on disk already.
 */
import { link, mkdir, readdir, readFile, rm } from 'node:fs/promises'
import path from 'node:path'
import { errorText } from '@warren/kit/error-text'
import { writeFileDurably } from '@warren/kit/files'
import { NewerVersion, parseRecord, renderRecord, type StoredVm, toStored, type VmRecord } from './record.ts'

const RECORD = /^(sb-\w+)\.json$/
const SET_ASIDE = /^sb-\w+\.json\.unreadable$/

export type Registry = ReturnType<typeof openRegistry>
/** `isNewer`: in the format of a newer host agent, so the text is intact. */
export type UnreadableRecord = { id: string; why: string; text: string; isNewer: boolean }

export function openRegistry(folder: string) {
  const fileOf = (id: string) => path.join(folder, `${id}.json`)
  const asideOf = (id: string) => `${fileOf(id)}.unreadable`
  /** One write per record at a time, so that the last one issued is the last one on disk. */
  const writing = new Map<string, Promise<void>>()
  let closed = false

  return {
    /** Durable when it settles. A reader sees either the old record or the new one. */
    write(record: VmRecord): Promise<void> {
      const stored = toStored(record)
      if (!stored) throw new Error(`${record.id} is ${record.state}: there is nothing to write yet`)
      if (closed) throw new Error(`failed to write the record of ${record.id}: the host agent is stopping`)
      const before = writing.get(record.id) ?? Promise.resolve()
      // An earlier write that failed was reported to its caller and does not block this one.
      const work = before.catch(() => {}).then(() => writeFileDurably(fileOf(record.id), renderRecord(stored)))
      writing.set(record.id, work)
      return work.finally(() => {
        if (writing.get(record.id) === work) writing.delete(record.id)
      })
    },

    /** Later writes fail: what the records do not name is being removed. */
    async close(): Promise<void> {
      closed = true
      await Promise.allSettled(writing.values())
    },

    async delete(id: string): Promise<void> {
      await writing.get(id)?.catch(() => {}) // Reported to its caller.
      await rm(fileOf(id), { force: true })
      await rm(asideOf(id), { force: true })
    },

    /** Changes nothing. Of a record that cannot be read, the file name still tells the sandbox. */
    async list(): Promise<{ records: StoredVm[]; unreadable: UnreadableRecord[] }> {
      await mkdir(folder, { recursive: true, mode: 0o700 })
      const records: StoredVm[] = []
      const unreadable: UnreadableRecord[] = []
      for (const name of await readdir(folder)) {
        const [, id] = RECORD.exec(name) ?? []
        if (id === undefined) continue
        let text = ''
        try {
          text = await readFile(path.join(folder, name), 'utf8')
          records.push(parseRecord(text, id))
        } catch (error) {
          unreadable.push({ id, why: errorText(error), text, isNewer: error instanceof NewerVersion })
        }
      }
      return { records, unreadable }
    },

    /**
     * Keeps an unreadable record under a second name, for a person to look at, before `write` replaces it. A sandbox
     * without a record would lose its generations, so the first name stays until then. Returns the file.
     */
    async setAside(id: string): Promise<string> {
      await rm(asideOf(id), { force: true })
      await link(fileOf(id), asideOf(id))
      return asideOf(id)
    },

    /** Removes temporary files of interrupted writes, and everything else that is not a record. */
    async removeStrays(): Promise<void> {
      for (const name of await readdir(folder)) {
        if (RECORD.test(name) || SET_ASIDE.test(name)) continue
        await rm(path.join(folder, name), { recursive: true, force: true })
      }
    },
  }
}
