/** Durable files: after a crash a file has its old content, its new content or does not exist. */
import { randomBytes } from 'node:crypto'
import { type FileHandle, mkdir, open, rename, rm } from 'node:fs/promises'
import path from 'node:path'

/**
 * Writes a temporary file beside it, syncs, renames it and syncs the directory. Readers see the old or the new content.
 * Without an owner the file belongs to this process.
 *
 * All calls are asynchronous: on a disk that guests keep busy, also a rename may wait until the file system has written its journal.
 */
export async function writeFileDurably(
  file: string,
  content: string,
  mode = 0o600,
  owner?: { uid: number; gid: number },
): Promise<void> {
  const folder = path.dirname(file)
  const temporary = path.join(folder, `.${path.basename(file)}.${randomBytes(6).toString('hex')}`)
  const handle = await createFile(temporary, mode)
  try {
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

/** The folder usually exists, which is found out by the attempt. */
async function createFile(file: string, mode: number): Promise<FileHandle> {
  try {
    return await open(file, 'wx', mode)
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw error
    await mkdir(path.dirname(file), { recursive: true, mode: 0o700 })
    return open(file, 'wx', mode)
  }
}

type FolderSync = { running: Promise<void>; next?: Promise<void> }
const folderSyncs = new Map<string, FolderSync>()

/**
 * Makes created, renamed and deleted directory entries durable. Those who ask while the folder is being synced share the next
 * sync: it begins after all of their changes.
 */
export function syncFolder(folder: string): Promise<void> {
  const current = folderSyncs.get(folder)
  if (!current) return startFolderSync(folder)
  // An error of the sync before was reported to those who waited for it.
  current.next ??= current.running.catch(() => {}).then(() => startFolderSync(folder))
  return current.next
}

function startFolderSync(folder: string): Promise<void> {
  const sync: FolderSync = { running: syncFile(folder) }
  folderSyncs.set(folder, sync)
  return sync.running.finally(() => {
    // Its successor, if any, replaces the entry in the next step.
    if (folderSyncs.get(folder) === sync && !sync.next) folderSyncs.delete(folder)
  })
}

export async function syncFile(file: string): Promise<void> {
  const handle = await open(file)
  try {
    await handle.sync()
  } finally {
    await handle.close()
  }
}
