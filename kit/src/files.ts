/** Durable files: after a crash a file has its old content, its new content or does not exist. */
import { randomBytes } from 'node:crypto'
import { mkdir, open, rename, rm } from 'node:fs/promises'
import path from 'node:path'

/**
 * Writes a temporary file beside it, syncs, renames it and syncs the directory. Readers see the old or the new content.
 * Without an owner the file belongs to this process.
 */
export async function writeFileDurably(
  file: string,
  content: string,
  mode = 0o600,
  owner?: { uid: number; gid: number },
): Promise<void> {
  const folder = path.dirname(file)
  await mkdir(folder, { recursive: true, mode: 0o700 })
  const temporary = path.join(folder, `.${path.basename(file)}.${randomBytes(6).toString('hex')}`)
  try {
    const handle = await open(temporary, 'wx', mode)
    try {
      await handle.writeFile(content)
      if (owner) await handle.chown(owner.uid, owner.gid)
      await handle.sync()
    } finally {
      await handle.close()
    }
    await rename(temporary, file)
  } catch (error) {
    await rm(temporary, { force: true })
    throw error
  }
  await syncFolder(folder)
}

/** Makes created, renamed and deleted directory entries durable. */
export const syncFolder = (folder: string): Promise<void> => syncFile(folder)

export async function syncFile(file: string): Promise<void> {
  const handle = await open(file, 'r')
  try {
    await handle.sync()
  } finally {
    await handle.close()
  }
}
