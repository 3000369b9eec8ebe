/**
 * The objects of the store and who needs them. A user is a manifest, a body that reads layers, or somebody who is about
 * to name some; an object goes with its last user. Taking a user on is synchronous: between looking an object up and
 * needing it there is no moment in which it could go.
 *
 * An object is written once. One that QEMU wrote becomes ours by another name for the same bytes, and from then on
 * belongs to root and is read-only: whoever has it open may go on, nobody opens it for writing again. A QEMU that was
 * taken over may have put anything in its folder, so what is taken in is looked at first.
 */
import { chmod, chown, link, lstat, readdir, rm } from 'node:fs/promises'
import path from 'node:path'
import type { StoredObject } from './manifest.ts'

export type Reservation = { release(): Promise<void> }
/** Whose file it must be, and how large it may be at most. */
export type Expected = { uid: number; maxBytes: number }

export type ObjectStore = ReturnType<typeof openObjects>

export function openObjects(folder: string) {
  const usersOf = new Map<string, Set<string>>()
  const objectsOf = new Map<string, Set<string>>()
  const sums = new Map<string, StoredObject>()
  /** Until a deleted object is really gone nothing may take its name. */
  const going = new Map<string, Promise<void>>()
  let reservations = 0
  const fileOf = (id: string) => path.join(folder, id)

  function use(user: string, ids: Iterable<string>): void {
    const mine = objectsOf.get(user) ?? new Set()
    objectsOf.set(user, mine)
    for (const id of ids) {
      mine.add(id)
      usersOf.set(id, (usersOf.get(id) ?? new Set()).add(user))
    }
  }

  async function drop(user: string, ids: Iterable<string> = objectsOf.get(user) ?? []): Promise<void> {
    const gone: Promise<void>[] = []
    for (const id of [...ids]) {
      objectsOf.get(user)?.delete(id)
      const users = usersOf.get(id)
      if (!users?.delete(user) || users.size > 0) continue
      usersOf.delete(id)
      sums.delete(id)
      gone.push(remove(id))
    }
    if (objectsOf.get(user)?.size === 0) objectsOf.delete(user)
    await Promise.all(gone)
  }

  function remove(id: string): Promise<void> {
    const work = rm(fileOf(id), { force: true }).finally(() => going.delete(id))
    going.set(id, work)
    return work
  }

  return {
    fileOf,
    use,
    drop,
    know: (object: StoredObject): void => void sums.set(object.id, object),
    /** As long as somebody needs it. */
    sumsOf: (id: string): StoredObject | undefined => sums.get(id),

    /** For whoever is about to name them, or to write them. */
    reserve(ids: Iterable<string>): Reservation {
      const user = `reserved ${reservations++}`
      use(user, ids)
      return { release: () => drop(user) }
    },

    /** Another name for the same bytes, on the same file system. Safe to repeat. */
    async take(file: string, id: string, { uid, maxBytes }: Expected): Promise<void> {
      await going.get(id)
      await link(file, fileOf(id)).catch((error: NodeJS.ErrnoException) => {
        if (error.code !== 'EEXIST') throw error
      })
      const found = await lstat(fileOf(id))
      // What was taken before, or sealed by a pause that failed later, is root's.
      const isOurs = found.isFile() && (found.uid === uid || found.uid === 0) && found.size <= maxBytes
      if (!isOurs) {
        await rm(fileOf(id), { force: true })
        throw new Error(`${id} is not what QEMU was to write: ${found.size} bytes of user ${found.uid}`)
      }
      // By path, in a folder that only root can enter: it is the file that was looked at.
      await chown(fileOf(id), 0, 0)
      await chmod(fileOf(id), 0o444)
    },

    /** Those that nobody needs: left by a process that was killed. By when they got their name, not by their bytes. */
    async collect(olderThanMs: number): Promise<{ removed: number; bytes: number }> {
      let [removed, bytes] = [0, 0]
      for (const id of await readdir(folder)) {
        const found = await lstat(fileOf(id)).catch(() => undefined) // Gone meanwhile.
        if (!found || usersOf.has(id) || Date.now() - found.ctimeMs < olderThanMs) continue
        bytes += found.size
        removed++
        await remove(id)
      }
      return { removed, bytes }
    },
  }
}
