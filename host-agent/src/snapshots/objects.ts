/**
 * The objects of the snapshot store, and which users refer to them. A user is a manifest, a VM that reads disk layers,
 * or an operation that is about to refer to an object (a reservation). An object is deleted with its last user. Adding a
 * user is synchronous, so an object cannot disappear between being looked up and being retained.
 *
 * An object is written once. A file that QEMU wrote is imported by a hard link; then it belongs to root and is
 * read-only: processes that have it open can still use it, but none can open it for writing. A compromised QEMU may have
 * put anything in its folder, so the file is checked on import.
 */
import { chmod, chown, link, lstat, readdir, rm } from 'node:fs/promises'
import path from 'node:path'
import type { StoredObject } from './manifest.ts'

export type Reservation = { release(): Promise<void> }
/** The owner that a file must have, and its maximum size. */
export type Expected = { uid: number; maxBytes: number }

export type ObjectStore = ReturnType<typeof openObjects>

export function openObjects(folder: string) {
  const usersOf = new Map<string, Set<string>>()
  const objectsOf = new Map<string, Set<string>>()
  const checksums = new Map<string, StoredObject>()
  /** Deletions in progress. An id can be used again only after its file is gone. */
  const deleting = new Map<string, Promise<void>>()
  let reservations = 0
  const fileOf = (id: string) => path.join(folder, id)

  function retain(user: string, ids: Iterable<string>): void {
    const retained = objectsOf.get(user) ?? new Set()
    objectsOf.set(user, retained)
    for (const id of ids) {
      retained.add(id)
      usersOf.set(id, (usersOf.get(id) ?? new Set()).add(user))
    }
  }

  async function release(user: string, ids: Iterable<string> = objectsOf.get(user) ?? []): Promise<void> {
    const deletions: Promise<void>[] = []
    for (const id of [...ids]) {
      objectsOf.get(user)?.delete(id)
      const users = usersOf.get(id)
      if (!users?.delete(user) || users.size > 0) continue
      usersOf.delete(id)
      checksums.delete(id)
      deletions.push(remove(id))
    }
    if (objectsOf.get(user)?.size === 0) objectsOf.delete(user)
    await Promise.all(deletions)
  }

  function remove(id: string): Promise<void> {
    const work = rm(fileOf(id), { force: true }).finally(() => deleting.delete(id))
    deleting.set(id, work)
    return work
  }

  return {
    fileOf,
    retain,
    release,
    addChecksums: (object: StoredObject): void => void checksums.set(object.id, object),
    /** Known while the object has a user. */
    findChecksums: (id: string): StoredObject | undefined => checksums.get(id),

    /** Retains objects that the caller is about to write or to refer to. */
    reserve(ids: Iterable<string>): Reservation {
      const user = `reserved ${reservations++}`
      retain(user, ids)
      return { release: () => release(user) }
    },

    /** Imports a file on the same file system by a hard link. Safe to repeat. */
    async importFile(file: string, id: string, { uid, maxBytes }: Expected): Promise<void> {
      await deleting.get(id)
      await link(file, fileOf(id)).catch((error: NodeJS.ErrnoException) => {
        if (error.code !== 'EEXIST') throw error
      })
      const found = await lstat(fileOf(id))
      // A file that was imported before, such as by a pause that failed later, belongs to root already.
      const isExpected = found.isFile() && (found.uid === uid || found.uid === 0) && found.size <= maxBytes
      if (!isExpected) {
        await rm(fileOf(id), { force: true })
        throw new Error(`${id} is not a file that QEMU was expected to write: ${found.size} bytes, owner ${found.uid}`)
      }
      // By path, but in a folder that only root can access, so it is the file that was checked.
      await chown(fileOf(id), 0, 0)
      await chmod(fileOf(id), 0o444)
    },

    /** Deletes objects without a user, left by a killed process. Their age is the time since they were linked. */
    async collect(olderThanMs: number): Promise<{ removed: number; bytes: number }> {
      let [removed, bytes] = [0, 0]
      for (const id of await readdir(folder)) {
        const found = await lstat(fileOf(id)).catch(() => undefined) // Deleted meanwhile.
        if (!found || usersOf.has(id) || Date.now() - found.ctimeMs < olderThanMs) continue
        bytes += found.size
        removed++
        await remove(id)
      }
      return { removed, bytes }
    },
  }
}
