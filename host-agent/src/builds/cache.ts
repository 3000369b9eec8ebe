/**
 * The step cache: the disk after a step, by the key of the step (dockerfile/src/cache-key.ts), for each user. A shared cache
 * would show one user what the steps of another downloaded or printed.
 *
 * The disk after a step is the layers of all steps up to it, on the disk of the base that they were made on. An entry names all
 * of them and the base. It cannot refer to the entries of the steps before it: when a step runs again, in another build of the
 * same file, its new layer differs from the one that later layers were made on. Layers are objects of the snapshot store, and
 * entries refer to them like manifests do.
 *
 * A result, the image that a whole build became, is kept by the key of its last step and its variables.
 */
import { createHash } from 'node:crypto'
import { mkdir, readdir, readFile, rm } from 'node:fs/promises'
import path from 'node:path'
import { writeFileDurably } from '@warren/kit/files'
import { type Static, Type } from 'typebox'
import { Value } from 'typebox/value'
import type { Base } from '../bases/base.ts'
import type { Reservation } from '../snapshots/objects.ts'
import type { SnapshotStore } from '../snapshots/store.ts'

const Disk = Type.Object({
  version: Type.Literal(1),
  kind: Type.Literal('disk'),
  layers: Type.Array(
    Type.Object({
      object: Type.String({ description: 'Of the snapshot store.' }),
      bytes: Type.Integer({ minimum: 0 }),
    }),
    { minItems: 1, description: 'Oldest first; the last one was made by this step.' },
  ),
  base: Type.Object({ key: Type.String(), id: Type.String() }),
  used_ms: Type.Integer(),
})
const Result = Type.Object({
  version: Type.Literal(1),
  kind: Type.Literal('result'),
  digest: Type.String(),
  size_bytes: Type.Integer(),
  used_ms: Type.Integer(),
})
const CacheEntry = Type.Union([Disk, Result])
type CacheEntry = Static<typeof CacheEntry>
export type CachedDisk = Static<typeof Disk>
export type CachedLayer = CachedDisk['layers'][number]
export type CachedResult = Static<typeof Result>

type Known = { owner: string; key: string; entry: CacheEntry; reservation?: Reservation | undefined; users: number }

/** A result is a few hundred bytes; without a limit they would add up. */
const RESULTS_MAX_AGE_MS = 30 * 24 * 3600 * 1000

export type StepCache = Awaited<ReturnType<typeof openStepCache>>

/** Call it before objects without a user are removed (vms/adopt.ts). */
export async function openStepCache(root: string, snapshots: SnapshotStore, maxBytes: number) {
  const known = new Map<string, Known>()
  const nameOf = (owner: string, key: string) => `${owner}/${key}`
  const fileOf = ({ owner, key }: Pick<Known, 'owner' | 'key'>) => path.join(root, owner, `${key}.json`)
  const remember = (owner: string, key: string, entry: CacheEntry): Known => {
    const objects = layersOf(entry).map(({ object }) => object)
    const reservation = objects.length > 0 ? snapshots.reserve(objects) : undefined
    const one: Known = { owner, key, entry, reservation, users: 0 }
    known.set(nameOf(owner, key), one)
    return one
  }
  await mkdir(root, { recursive: true, mode: 0o700 })
  const owners = (await readdir(root, { withFileTypes: true })).filter((one) => one.isDirectory())
  for (const { name: owner } of owners) {
    for (const name of await readdir(path.join(root, owner))) {
      const entry = await readEntry(path.join(root, owner, name))
      if (entry) remember(owner, path.basename(name, '.json'), entry)
      else await rm(path.join(root, owner, name), { force: true })
    }
  }

  async function forget(one: Known): Promise<void> {
    if (known.get(nameOf(one.owner, one.key)) !== one) return // Replaced since it was listed.
    known.delete(nameOf(one.owner, one.key))
    await rm(fileOf(one), { force: true })
    await one.reservation?.release()
  }

  async function store(owner: string, key: string, entry: CacheEntry): Promise<void> {
    const before = known.get(nameOf(owner, key))
    // Retained before the file names it, and before the one that it replaces is released.
    remember(owner, key, entry)
    await writeFileDurably(fileOf({ owner, key }), `${JSON.stringify(entry)}\n`)
    await before?.reservation?.release()
  }

  /** An object counts once, however many entries name it. */
  const totalBytes = (): number => {
    const objects = new Map(
      [...known.values()].flatMap(({ entry }) => layersOf(entry)).map((one) => [one.object, one.bytes]),
    )
    return [...objects.values()].reduce((sum, bytes) => sum + bytes, 0)
  }

  return {
    totalBytes,

    /**
     * The disk after as many steps as possible, which has one layer for each. It counts as used now, with the steps before it.
     * Until `release`, these entries are not pruned, and the layers stay although another build may replace the entries.
     */
    async takePrefix(
      owner: string,
      keys: readonly string[],
      base: Base,
      nowMs: number,
    ): Promise<{ layers: readonly CachedLayer[]; release(): Promise<void> }> {
      const found = keys.map((key) => known.get(nameOf(owner, key)))
      const last = found.findLastIndex((one, i) => one !== undefined && isUsable(one.entry, base, i + 1))
      const taken = found.slice(0, last + 1).filter((one) => one !== undefined)
      const layers = last < 0 ? [] : layersOf(found[last]!.entry)
      const reservation = snapshots.reserve(layers.map(({ object }) => object))
      for (const one of taken) one.users++
      for (const one of taken) await touch(one, nowMs)
      return {
        layers,
        release: async () => {
          for (const one of taken.splice(0)) one.users--
          await reservation.release()
        },
      }
    },

    addDisk: (owner: string, key: string, disk: Omit<CachedDisk, 'version' | 'kind'>): Promise<void> =>
      store(owner, key, { version: 1, kind: 'disk', ...disk }),

    findResult(owner: string, key: string): CachedResult | undefined {
      const entry = known.get(nameOf(owner, key))?.entry
      return entry?.kind === 'result' ? entry : undefined
    },

    addResult: (owner: string, key: string, result: Omit<CachedResult, 'version' | 'kind'>): Promise<void> =>
      store(owner, key, { version: 1, kind: 'result', ...result }),

    /** Removes what was not used for longest until the rest fits, except what a build uses now. */
    async prune(nowMs: number): Promise<{ removed: number; bytes: number }> {
      // Of equals the longest first: its layers are not part of the others.
      const oldestFirst = [...known.values()].sort(
        (a, b) => a.entry.used_ms - b.entry.used_ms || layersOf(b.entry).length - layersOf(a.entry).length,
      )
      const before = totalBytes()
      let removed = 0
      for (const one of oldestFirst) {
        const isOld = one.entry.kind === 'result' && nowMs - one.entry.used_ms > RESULTS_MAX_AGE_MS
        const isTooMuch = one.entry.kind === 'disk' && totalBytes() > maxBytes
        if (one.users > 0 || !(isOld || isTooMuch)) continue
        await forget(one)
        removed++
      }
      return { removed, bytes: before - totalBytes() }
    },

    /** Of a base that is gone: nothing can be put on it any more. */
    async forgetBases(isKept: (base: { key: string; id: string }) => Promise<boolean>): Promise<void> {
      const kept = new Map<string, boolean>()
      for (const one of [...known.values()]) {
        if (one.entry.kind !== 'disk' || one.users > 0) continue
        const { base } = one.entry
        const name = `${base.key} ${base.id}`
        if (!kept.has(name)) kept.set(name, await isKept(base))
        if (!kept.get(name)) await forget(one)
      }
    },
  }

  async function touch(one: Known, nowMs: number): Promise<void> {
    if (known.get(nameOf(one.owner, one.key)) !== one) return // Replaced by another build.
    one.entry = { ...one.entry, used_ms: nowMs }
    // A time that is lost only changes what is pruned first.
    await writeFileDurably(fileOf(one), `${JSON.stringify(one.entry)}\n`).catch(() => {})
  }
}

const layersOf = (entry: CacheEntry): readonly CachedLayer[] => (entry.kind === 'disk' ? entry.layers : [])

const isUsable = (entry: CacheEntry, base: Base, steps: number): boolean =>
  entry.kind === 'disk' && entry.layers.length === steps && entry.base.key === base.key && entry.base.id === base.id

/** The key of what a build becomes: its last step and the variables that are part of the image. */
export function keyOfResult(lastKey: string, env: Readonly<Record<string, string>>): string {
  const sorted = Object.entries(env).sort(([a], [b]) => (a < b ? -1 : 1))
  return createHash('sha256')
    .update(JSON.stringify(['result-1', lastKey, sorted]))
    .digest('hex')
}

async function readEntry(file: string): Promise<CacheEntry | undefined> {
  try {
    const entry: unknown = JSON.parse(await readFile(file, 'utf8'))
    return Value.Check(CacheEntry, entry) ? entry : undefined
  } catch {
    return undefined // A temporary file of an interrupted write, or damaged.
  }
}
