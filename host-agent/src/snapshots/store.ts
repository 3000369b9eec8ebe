/**
 * Where generations are kept: a local folder now, an object store for several hosts later, so nobody else builds a
 * path. Objects (memory, device state, layers of disk) are written once and never again; manifests name them. Any
 * number of manifests may name one object: a fork is a new manifest. An object that no manifest and no running body
 * names is deleted; who names what is read from the manifests at start, so no count can be wrong after a crash.
 *
 * Adding a generation: the objects are linked in, on disk and checksummed; then the manifest is renamed into place.
 * That rename is the moment from which the generation exists. The one before it stays; those before that one go.
 */
import { existsSync } from 'node:fs'
import { mkdir, readdir, readFile, rename, rm } from 'node:fs/promises'
import path from 'node:path'
import { syncFolder, writeFileDurably } from '@warren/kit/files'
import { errorText } from '@warren/kit/text'
import { type Manifest, objectsOf, parseManifest, renderManifest } from './manifest.ts'
import { openObjects } from './objects.ts'

/** A generation that can, or can no longer, be resumed from. */
export type Generation = { generation: number; manifest: Manifest; damage?: undefined } | Damaged
export type Damaged = { generation: number; manifest?: Manifest; damage: string }

/** The newest and the one before it: if the newest turns out damaged, there is something to go back to. */
const KEPT = 2

export type SnapshotStore = Awaited<ReturnType<typeof openSnapshotStore>>
type Whole = Extract<Generation, { damage?: undefined }>

export async function openSnapshotStore(root: string) {
  const sandboxes = path.join(root, 'sandboxes')
  const objectFolder = path.join(root, 'objects')
  for (const folder of [objectFolder, sandboxes]) await mkdir(folder, { recursive: true, mode: 0o700 })
  const objects = openObjects(objectFolder)
  const generations = await readAll(sandboxes)
  for (const list of generations.values()) for (const { manifest } of list) if (manifest) use(manifest)

  const folderOf = (id: string) => path.join(sandboxes, id)
  const fileOf = (id: string, generation: number, ending = 'json') =>
    path.join(folderOf(id), `${String(generation).padStart(8, '0')}.${ending}`)
  const listOf = (id: string): Generation[] => generations.get(id) ?? []

  function use(manifest: Manifest): void {
    objects.use(userOf(manifest), idsOf(manifest))
    for (const { id, bytes, crcs } of objectsOf(manifest)) objects.know({ id, bytes, crcs })
  }

  /** From the list first: whoever looks it up from now on does not find it. */
  async function drop(id: string, one: Generation): Promise<void> {
    generations.set(
      id,
      listOf(id).filter((other) => other.generation !== one.generation),
    )
    for (const ending of ['json', 'damaged']) await rm(fileOf(id, one.generation, ending), { force: true })
    if (one.manifest) await objects.drop(userOf(one.manifest))
  }

  /** On disk, objects before the manifest that names them. */
  async function write(manifest: Manifest): Promise<void> {
    const missing = idsOf(manifest).filter((id) => !existsSync(objects.fileOf(id)))
    if (missing.length > 0) throw new Error(`${missing.join(', ')} went missing before it was named`)
    await syncFolder(objectFolder)
    await writeFileDurably(fileOf(manifest.sandbox, manifest.generation), renderManifest(manifest))
    await syncFolder(sandboxes)
  }

  return {
    /** Newest first. */
    list: listOf,
    all: (): ReadonlyMap<string, readonly Generation[]> => generations,
    find: (id: string, generation: number): Generation | undefined =>
      listOf(id).find((one) => one.generation === generation),
    /** The newest that is not known to be damaged. */
    newest: (id: string): Whole | undefined => listOf(id).find((one): one is Whole => one.damage === undefined),
    /** Never used before, also not by one that was dropped or damaged. */
    nextNumber: (id: string): number => Math.max(0, ...listOf(id).map((one) => one.generation)) + 1,

    /** The file of an object, here on this machine; a new one that is reserved may be written there. */
    fileOf: objects.fileOf,
    sumsOf: objects.sumsOf,
    take: objects.take,
    reserve: objects.reserve,
    /** A body reads these until it ends. */
    hold: (body: string, ids: readonly string[]): void => objects.use(`body ${body}`, ids),
    letGo: (body: string, ids: readonly string[]): Promise<void> => objects.drop(`body ${body}`, ids),
    release: (body: string): Promise<void> => objects.drop(`body ${body}`),
    /** While sandboxes are being saved only old ones, to be on the safe side. */
    collect: (olderThanMs = 0) => objects.collect(olderThanMs),

    /** Its objects are on disk already, with their sums, and reserved by the caller. */
    async add(manifest: Manifest): Promise<void> {
      const { sandbox: id, generation } = manifest
      use(manifest)
      try {
        await write(manifest)
      } catch (error) {
        await rm(fileOf(id, generation), { force: true }).catch(() => {}) // The first error tells more.
        await objects.drop(userOf(manifest))
        throw error
      }
      generations.set(id, [{ generation, manifest }, ...listOf(id)])
    },

    /** The same generation said with other objects; false when it is no longer the one that was read. */
    async replace(old: Manifest, manifest: Manifest): Promise<boolean> {
      const { sandbox: id, generation } = manifest
      const isCurrent = () => listOf(id).some((one) => one.manifest === old && one.damage === undefined)
      if (!isCurrent()) return false
      const kept = new Set(idsOf(manifest))
      const fresh = idsOf(manifest).filter((object) => !idsOf(old).includes(object))
      use(manifest)
      try {
        await write(manifest)
      } catch (error) {
        if (isCurrent()) await objects.drop(userOf(old), fresh)
        throw error
      }
      if (!isCurrent()) {
        // Deleted or set aside while we wrote: what we wrote goes the same way.
        await rm(fileOf(id, generation), { force: true })
        await objects.drop(userOf(manifest), fresh)
        return false
      }
      generations.set(
        id,
        listOf(id).map((one) => (one.manifest === old ? { generation, manifest } : one)),
      )
      await objects.drop(
        userOf(old),
        idsOf(old).filter((object) => !kept.has(object)),
      )
      return true
    },

    async dropOld(id: string): Promise<void> {
      const whole = listOf(id).filter((one) => one.damage === undefined)
      const kept = new Set<Generation>(whole.slice(0, KEPT))
      for (const one of listOf(id)) if (!kept.has(one)) await drop(id, one)
    },

    /** Set aside: never resumed from again, kept for a look until the next one is saved. */
    async setAside(id: string, generation: number, damage: string): Promise<void> {
      generations.set(
        id,
        listOf(id).map((one) => (one.generation === generation ? { ...one, damage } : one) as Generation),
      )
      await rename(fileOf(id, generation), fileOf(id, generation, 'damaged')).catch(() => {}) // Gone is no better.
    },

    async deleteAll(id: string): Promise<void> {
      for (const one of listOf(id)) await drop(id, one)
      generations.delete(id)
      await rm(folderOf(id), { recursive: true, force: true })
    },
  }
}

const userOf = ({ sandbox, generation }: Manifest): string => `${sandbox}/${generation}`
const idsOf = (manifest: Manifest): string[] => objectsOf(manifest).map((object) => object.id)

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
