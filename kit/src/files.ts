/** Files that are whole or absent, also after a crash. */
import { randomBytes } from 'node:crypto'
import { mkdir, open, rename, rm } from 'node:fs/promises'
import path from 'node:path'

/** Written beside its place, synced, renamed, and the directory synced: a reader sees the old or the new content. */
export async function writeFileDurably(file: string, content: string, mode = 0o600): Promise<void> {
  const folder = path.dirname(file)
  await mkdir(folder, { recursive: true, mode: 0o700 })
  const fresh = path.join(folder, `.${path.basename(file)}.${randomBytes(6).toString('hex')}`)
  try {
    const handle = await open(fresh, 'wx', mode)
    try {
      await handle.writeFile(content)
      await handle.sync()
    } finally {
      await handle.close()
    }
    await rename(fresh, file)
  } catch (error) {
    await rm(fresh, { force: true })
    throw error
  }
  await syncFolder(folder)
}

/** Makes the names in it last: what was created, renamed or removed there. */
export async function syncFolder(folder: string): Promise<void> {
  const handle = await open(folder, 'r')
  try {
    await handle.sync()
  } finally {
    await handle.close()
  }
}
