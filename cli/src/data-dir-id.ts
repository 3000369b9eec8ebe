/** The id of a data directory, by which a database elsewhere knows it (control-plane/src/hosts/data-directory.ts). */
import { randomBytes } from 'node:crypto'
import { readFile } from 'node:fs/promises'
import path from 'node:path'
import { writeFileDurably } from '@warren/kit/files'
import type { InstanceConfig } from './config.ts'

const ID = /^[0-9a-f]{32}\n$/

/** Creates it if there is none. A back-up contains it, so a restored data directory has the same. */
export async function ensureDataDirId({ dataDir }: Pick<InstanceConfig, 'dataDir'>): Promise<string> {
  const file = path.join(dataDir, 'id')
  const found = await readFile(file, 'utf8').catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT') return undefined
    throw error
  })
  if (found !== undefined) {
    if (!ID.test(found)) throw new Error(`${file} is damaged; restore it from the back-up`)
    return found.trim()
  }
  const id = randomBytes(16).toString('hex')
  await writeFileDurably(file, `${id}\n`)
  return id
}
