/** Computes the digests that name the content of the cache. */
import { createHash } from 'node:crypto'
import { createReadStream } from 'node:fs'
import { readdir } from 'node:fs/promises'
import path from 'node:path'
import { pipeline } from 'node:stream/promises'
import { digestOf } from './layout.ts'

export async function hashFile(file: string, signal?: AbortSignal): Promise<string> {
  const hash = createHash('sha256')
  await pipeline(createReadStream(file, { highWaterMark: 1024 ** 2 }), hash, { signal })
  return digestOf(hash.digest('hex'))
}

/** The digest covers names and contents of all files in the folder. */
export async function hashFolder(folder: string): Promise<string> {
  const entries = await readdir(folder, { recursive: true, withFileTypes: true })
  const files = entries.filter((entry) => entry.isFile()).map((entry) => path.join(entry.parentPath, entry.name))
  const hash = createHash('sha256')
  for (const file of files.sort()) hash.update(`${path.relative(folder, file)}\0${await hashFile(file)}\n`)
  return digestOf(hash.digest('hex'))
}
