/**
 * Where generations are kept: a local folder now, an object store for several hosts later, so nobody else builds a
 * path. Objects (memory, device state, layers of disk) are written once and never again; manifests name them. Any
 * number of manifests may name one object: a fork is a new manifest. An object that no manifest and no running body
 * names is deleted; who names what is read from the manifests at start, so no count can be wrong after a crash.
 *
 * Adding a generation: the objects are linked in, on disk and checksummed; then the manifest is renamed into place.
 * That rename is the moment from which the generation exists. The one before it stays; those before that one go.
 */
import { link, mkdir, readdir, readFile, rename, rm, stat } from 'node:fs/promises'
import path from 'node:path'
import { syncFolder, writeFileDurably } from '@warren/kit/files'
import { errorText } from '@warren/kit/text'
import { type Manifest, objectsOf, parseManifest, renderManifest, type StoredObject } from './manifest.ts'

/** A generation that can, or can no longer, be resumed from. */
export type Generation = { generation: number; manifest: Manifest; damage?: undefined } | Damaged
export type Damaged = { generation: number; manifest?: Manifest; damage: string }

/** The newest and the one before it: if the newest turns out damaged, there is something to go back to. */
const KEPT = 2

export type SnapshotStore = Awaited<ReturnType<typeof openSnapshotStore>>

export async function openSnapshotStore(root: string) {
  const objects = path.join(root, 'objects')
  const sandboxes = path.join(root, 'sandboxes')
  for (const folder of [objects, sandboxes]) await mkdir(folder, { recursive: true, mode: 0o700 })
  const generations = await readAll(sandboxes)
  /** Object → manifests (`id/generation`) and bodies (`body/id`) that need it. */
  const users = new Map<string, Set<string>>()
  const sums = new Map<string, StoredObject>()
  const held = new Map<string, string[]>()
  for (const [id, list] of generations) for (const one of list) if (one.manifest) use(one.manifest, `${id}/`)

  function use(manifest: Manifest, owner: string): void {
    for (const { id, bytes, crcs } of objectsOf(manifest)) {
      addUser(id, `${owner}${manifest.generation}`)
      sums.set(id, { id, bytes, crcs })
    }
  }

  function addUser(object: string, user: string): void {
    const set = users.get(object) ?? new Set()
    users.set(object, set.add(user))
  }

  async function dropUser(user: string, objectIds: readonly string[]): Promise<void> {
    for (const id of objectIds) {
      const set = users.get(id)
      if (!set?.delete(user) || set.size > 0) continue
      users.delete(id)
      sums.delete(id)
      await rm(path.join(objects, id), { force: true })
    }
  }

  const folderOf = (id: string) => path.join(sandboxes, id)
  const fileOf = (id: string, generation: number, ending = 'json') =>
    path.join(folderOf(id), `${String(generation).padStart(8, '0')}.${ending}`)
  const listOf = (id: string): Generation[] => generations.get(id) ?? []

  async function drop(id: string, one: Generation): Promise<void> {
    for (const ending of ['json', 'damaged']) await rm(fileOf(id, one.generation, ending), { force: true })
    generations.set(
      id,
      listOf(id).filter((other) => other !== one),
    )
    if (one.manifest)
      await dropUser(
        `${id}/${one.generation}`,
        objectsOf(one.manifest).map((object) => object.id),
      )
  }

  return {
    /** Newest first. */
    list: listOf,
    all: (): ReadonlyMap<string, readonly Generation[]> => generations,
    find: (id: string, generation: number): Generation | undefined =>
      listOf(id).find((one) => one.generation === generation),
    /** The newest that is not known to be damaged. */
    newest: (id: string): Extract<Generation, { damage?: undefined }> | undefined =>
      listOf(id).find((one): one is Extract<Generation, { damage?: undefined }> => one.damage === undefined),
    /** Never used before, also not by one that was dropped or damaged. */
    nextNumber: (id: string): number => Math.max(0, ...listOf(id).map((one) => one.generation)) + 1,

    /** The file of an object, here on this machine; a new one may be written there, and is nobody's until it is named. */
    fileOf: (object: string): string => path.join(objects, object),
    /** As long as somebody needs it. */
    sumsOf: (object: string): StoredObject | undefined => sums.get(object),
    /** Takes a file of this file system in as an object, by another name for the same bytes. */
    async take(file: string, object: string): Promise<void> {
      await link(file, path.join(objects, object)).catch((error: NodeJS.ErrnoException) => {
        if (error.code !== 'EEXIST') throw error // A live fork took it before, or a try that came to nothing.
      })
    },
    /** Of a try that came to nothing. */
    async discard(objectIds: readonly string[]): Promise<void> {
      for (const id of objectIds) if (!users.has(id)) await rm(path.join(objects, id), { force: true })
    },
    /** A body reads these until it ends. */
    hold(body: string, objectIds: readonly string[]): void {
      for (const id of objectIds) addUser(id, `body/${body}`)
      held.set(body, [...(held.get(body) ?? []), ...objectIds])
    },
    async release(body: string): Promise<void> {
      await dropUser(`body/${body}`, held.get(body) ?? [])
      held.delete(body)
    },

    /** Its objects are on disk already, with their sums. */
    async add(manifest: Manifest): Promise<void> {
      const { sandbox: id, generation } = manifest
      // Before the manifest: an object that is being named must not be deleted by whoever named it last.
      use(manifest, `${id}/`)
      try {
        await syncFolder(objects)
        await writeFileDurably(fileOf(id, generation), renderManifest(manifest))
        await syncFolder(sandboxes)
      } catch (error) {
        await rm(fileOf(id, generation), { force: true }).catch(() => {}) // The first error tells more.
        await dropUser(
          `${id}/${generation}`,
          objectsOf(manifest).map((object) => object.id),
        )
        throw error
      }
      generations.set(id, [{ generation, manifest }, ...listOf(id)])
    },

    /** The same generation said with other objects; false when it is no longer the one that was read. */
    async replace(old: Manifest, manifest: Manifest): Promise<boolean> {
      const { sandbox: id, generation } = manifest
      const current = () => listOf(id).find((one) => one.generation === generation && one.manifest === old)
      if (!current() || current()?.damage !== undefined) return false
      use(manifest, `${id}/`)
      await syncFolder(objects)
      await writeFileDurably(fileOf(id, generation), renderManifest(manifest))
      const kept = new Set(objectsOf(manifest).map((object) => object.id))
      const gone = objectsOf(old).flatMap((object) => (kept.has(object.id) ? [] : object.id))
      if (!current()) {
        // Deleted while we wrote: so is what we wrote.
        await rm(fileOf(id, generation), { force: true })
        await dropUser(`${id}/${generation}`, [...kept, ...gone])
        return false
      }
      generations.set(
        id,
        listOf(id).map((one) => (one.manifest === old ? { generation, manifest } : one)),
      )
      await dropUser(`${id}/${generation}`, gone)
      return true
    },

    async dropOld(id: string): Promise<void> {
      const whole = listOf(id).filter((one) => one.damage === undefined)
      const kept = new Set<Generation>(whole.slice(0, KEPT))
      for (const one of listOf(id)) if (!kept.has(one)) await drop(id, one)
    },

    /** Set aside: never resumed from again, kept for a look until the next one is saved. */
    async setAside(id: string, generation: number, damage: string): Promise<void> {
      await rename(fileOf(id, generation), fileOf(id, generation, 'damaged')).catch(() => {}) // Gone is no better.
      generations.set(
        id,
        listOf(id).map((one) => (one.generation === generation ? { ...one, damage } : one) as Generation),
      )
    },

    async deleteAll(id: string): Promise<void> {
      for (const one of listOf(id)) await drop(id, one)
      generations.delete(id)
      await rm(folderOf(id), { recursive: true, force: true })
    },

    /**
     * Objects that nobody names: left by a process that was killed between two steps. While sandboxes are being saved
     * only old ones: the new may be about to be named.
     */
    async collect(olderThanMs = 0): Promise<{ removed: number; bytes: number }> {
      let [removed, bytes] = [0, 0]
      for (const name of await readdir(objects)) {
        if (users.has(name)) continue
        const { size, mtimeMs } = await stat(path.join(objects, name))
        if (Date.now() - mtimeMs < olderThanMs) continue
        bytes += size
        await rm(path.join(objects, name), { force: true })
        removed++
      }
      return { removed, bytes }
    },
  }
}

async function readAll(sandboxes: string): Promise<Map<string, Generation[]>> {
  const all = new Map<string, Generation[]>()
  for (const id of await readdir(sandboxes)) {
    const folder = path.join(sandboxes, id)
    const list: Generation[] = []
    for (const name of await readdir(folder)) {
      const [, digits, ending] = /^(\d{8})\.(json|damaged)$/.exec(name) ?? []
      if (digits !== undefined) list.push(await readOne(path.join(folder, name), id, Number(digits), ending!))
    }
    all.set(
      id,
      list.sort((a, b) => b.generation - a.generation),
    )
  }
  return all
}

async function readOne(file: string, sandbox: string, generation: number, ending: string): Promise<Generation> {
  try {
    const manifest = parseManifest(await readFile(file, 'utf8'), { sandbox, generation })
    return ending === 'json'
      ? { generation, manifest }
      : { generation, manifest, damage: 'it was found damaged before' }
  } catch (error) {
    return { generation, damage: errorText(error) }
  }
}
