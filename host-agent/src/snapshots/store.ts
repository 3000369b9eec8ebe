/**
 * The snapshot store: the saved generations of sandboxes. It is a local folder now and may become an object store that
 * several hosts share, so no other module builds paths into it.
 *
 * Objects (memory, device state, disk layers) are written once and never changed. Manifests refer to them, and several
 * manifests may refer to one object: a fork is a new manifest. An object to which no manifest and no running VM refers is
 * deleted. References are read from the manifests at start, so a crash cannot leave a wrong count.
 *
 * Adding a generation: the objects are linked, synced and checksummed; then the manifest is renamed into place. From that
 * rename on the generation exists. The previous generation is retained; older ones are deleted.
 */
import { existsSync } from 'node:fs'
import { mkdir, readdir, readFile, rename, rm } from 'node:fs/promises'
import path from 'node:path'
import { errorText } from '@warren/kit/error-text'
import { syncFolder, writeFileDurably } from '@warren/kit/files'
import { type Manifest, objectsOf, parseManifest, renderManifest } from './manifest.ts'
import { openObjects } from './objects.ts'

/** A damaged generation cannot be resumed from. */
export type Generation = Intact | Damaged
type Intact = { generation: number; manifest: Manifest; damage?: undefined }
export type Damaged = { generation: number; manifest?: Manifest; damage: string }

/** The newest and the one before it. If a resume finds the newest damaged, it fails, and the next resume uses the other. */
const RETAINED_GENERATIONS = 2

export type SnapshotStore = Awaited<ReturnType<typeof openSnapshotStore>>

export async function openSnapshotStore(root: string) {
  const sandboxes = path.join(root, 'sandboxes')
  const objectFolder = path.join(root, 'objects')
  for (const folder of [objectFolder, sandboxes]) await mkdir(folder, { recursive: true, mode: 0o700 })
  const objects = openObjects(objectFolder)
  const generations = await readAll(sandboxes)
  for (const list of generations.values()) for (const { manifest } of list) if (manifest) retainObjects(manifest)

  const folderOf = (id: string) => path.join(sandboxes, id)
  const manifestFile = (id: string, generation: number, ending = 'json') =>
    path.join(folderOf(id), `${String(generation).padStart(8, '0')}.${ending}`)
  const listOf = (id: string): Generation[] => generations.get(id) ?? []

  function retainObjects(manifest: Manifest): void {
    objects.retain(userOf(manifest), idsOf(manifest))
    for (const { id, bytes, crcs } of objectsOf(manifest)) objects.addChecksums({ id, bytes, crcs })
  }

  /** Removed from the list first, so that it cannot be found while its files are deleted. */
  async function deleteGeneration(id: string, one: Generation): Promise<void> {
    generations.set(
      id,
      listOf(id).filter((other) => other.generation !== one.generation),
    )
    for (const ending of ['json', 'damaged']) await rm(manifestFile(id, one.generation, ending), { force: true })
    if (one.manifest) await objects.release(userOf(one.manifest))
  }

  /** The objects are synced before the manifest that refers to them is written. */
  async function writeManifest(manifest: Manifest): Promise<void> {
    const missing = idsOf(manifest).filter((id) => !existsSync(objects.fileOf(id)))
    if (missing.length > 0) throw new Error(`object ${missing.join(', ')} is missing`)
    await syncFolder(objectFolder)
    await writeFileDurably(manifestFile(manifest.sandbox, manifest.generation), renderManifest(manifest))
    await syncFolder(sandboxes)
  }

  return {
    /** Newest first. */
    list: listOf,
    listAll: (): ReadonlyMap<string, readonly Generation[]> => generations,
    find: (id: string, generation: number): Generation | undefined =>
      listOf(id).find((one) => one.generation === generation),
    /** The newest that is not known to be damaged. */
    findNewestIntact: (id: string): Intact | undefined =>
      listOf(id).find((one): one is Intact => one.damage === undefined),
    /** Higher than every number in use, damaged generations included. */
    nextGeneration: (id: string): number => Math.max(0, ...listOf(id).map((one) => one.generation)) + 1,

    /** The local file of an object. A new object may be written there once it is reserved. */
    fileOf: objects.fileOf,
    findChecksums: objects.findChecksums,
    importFile: objects.importFile,
    reserve: objects.reserve,
    /** Retains the disk layers that a VM reads. */
    retain: (vmmId: string, ids: readonly string[]): void => objects.retain(`vmm ${vmmId}`, ids),
    /** Releases these layers, or by default all layers of the VM. */
    release: (vmmId: string, ids?: readonly string[]): Promise<void> => objects.release(`vmm ${vmmId}`, ids),
    /** Makes the names of new objects durable, for a caller that refers to one other than by a manifest. */
    syncNames: (): Promise<void> => syncFolder(objectFolder),
    /** Retains every object that exists now, for as long as this process lives. */
    retainExisting: async (): Promise<void> => objects.retain('unknown', await readdir(objectFolder)),
    /** While sandboxes are being saved, callers pass a minimum age, to spare files that are not referred to yet. */
    collect: (olderThanMs = 0) => objects.collect(olderThanMs),

    /** The objects are on disk, have checksums and are reserved by the caller. */
    async add(manifest: Manifest): Promise<void> {
      const { sandbox: id, generation } = manifest
      retainObjects(manifest)
      try {
        await writeManifest(manifest)
      } catch (error) {
        await rm(manifestFile(id, generation), { force: true }).catch(() => {}) // The first error is thrown below.
        await objects.release(userOf(manifest))
        throw error
      }
      generations.set(id, [{ generation, manifest }, ...listOf(id)])
    },

    /** Replaces the objects of a generation, such as merged layers. False if `old` is no longer its manifest. */
    async replace(old: Manifest, manifest: Manifest): Promise<boolean> {
      const { sandbox: id, generation } = manifest
      const isCurrent = () => listOf(id).some((one) => one.manifest === old && one.damage === undefined)
      if (!isCurrent()) return false
      const stillUsed = new Set(idsOf(manifest))
      const added = idsOf(manifest).filter((object) => !idsOf(old).includes(object))
      retainObjects(manifest)
      try {
        await writeManifest(manifest)
      } catch (error) {
        if (isCurrent()) await objects.release(userOf(old), added)
        throw error
      }
      if (!isCurrent()) {
        // The generation was deleted or marked as damaged during the write, so the new manifest is deleted too.
        await rm(manifestFile(id, generation), { force: true })
        await objects.release(userOf(manifest), added)
        return false
      }
      generations.set(
        id,
        listOf(id).map((one) => (one.manifest === old ? { generation, manifest } : one)),
      )
      await objects.release(
        userOf(old),
        idsOf(old).filter((object) => !stillUsed.has(object)),
      )
      return true
    },

    async deleteOld(id: string): Promise<void> {
      const intact = listOf(id).filter((one) => one.damage === undefined)
      const retained = new Set<Generation>(intact.slice(0, RETAINED_GENERATIONS))
      for (const one of listOf(id)) if (!retained.has(one)) await deleteGeneration(id, one)
    },

    /** The generation is never resumed from again. Its files stay for inspection until the next one is saved. */
    async markDamaged(id: string, generation: number, damage: string): Promise<void> {
      generations.set(
        id,
        listOf(id).map((one) => (one.generation === generation ? { ...one, damage } : one) as Generation),
      )
      // If the manifest is missing, the generation is lost after a restart as well.
      await rename(manifestFile(id, generation), manifestFile(id, generation, 'damaged')).catch(() => {})
    },

    async deleteAll(id: string): Promise<void> {
      for (const one of listOf(id)) await deleteGeneration(id, one)
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
    return ending === 'json' ? { generation, manifest } : { generation, manifest, damage: 'found damaged earlier' }
  } catch (error) {
    return { generation, damage: errorText(error) }
  }
}
