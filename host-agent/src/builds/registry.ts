/**
 * The builds of this host on disk: `<data directory>/builds/<id>/` has the record and the log. A build whose record cannot be
 * read, perhaps because a newer host agent wrote it, is not listed. Its image and its files stay until it is deleted.
 */
import { mkdir, readdir, readFile, rm } from 'node:fs/promises'
import path from 'node:path'
import { errorText } from '@warren/kit/error-text'
import { syncFolder, writeFileDurably } from '@warren/kit/files'
import type { Log } from '@warren/kit/log'
import type { HostBuild } from '@warren/protocol'
import { parseRecord, renderRecord } from './record.ts'

const BUILD_ID = /^tpl_\w+$/
const RECORD_FILE = 'record.json'

export type BuildRegistry = ReturnType<typeof openBuildRegistry>

export function openBuildRegistry(root: string, log: Pick<Log, 'error'>) {
  const folderOf = (id: string) => path.join(root, id)
  return {
    logFileOf: (id: string): string => path.join(folderOf(id), 'log.ndjson'),

    write: (build: HostBuild): Promise<void> =>
      writeFileDurably(path.join(folderOf(build.id), RECORD_FILE), renderRecord(build)),

    async delete(id: string): Promise<void> {
      await rm(folderOf(id), { recursive: true, force: true })
      await syncFolder(root)
    },

    async list(): Promise<HostBuild[]> {
      await mkdir(root, { recursive: true, mode: 0o700 })
      const builds: HostBuild[] = []
      for (const id of (await readdir(root)).filter((name) => BUILD_ID.test(name))) {
        try {
          builds.push(parseRecord(await readFile(path.join(folderOf(id), RECORD_FILE), 'utf8'), id))
        } catch (error) {
          log.error({ build: id, why: errorText(error) }, 'failed to read the record of a build; it is left out')
        }
      }
      return builds
    },
  }
}
