/**
 * Merges disk layers of paused sandboxes in the background. Every resume puts an empty disk on top of what was saved, so
 * every pause makes the chain longer by one.
 *
 * The newest layers are merged as long as each is at most twice as large as all layers above it together. Sizes then
 * grow at least threefold from each layer to the one below, so a chain has a handful of layers whatever was written, and
 * a byte is rewritten only a few times.
 *
 * The content of a generation never changes: its manifest is replaced by one that describes the same disk with fewer
 * objects. A VMM that runs on the old objects keeps them open; its next pause uses the new ones (chain.ts).
 */
import { randomBytes } from 'node:crypto'
import { abortable } from '@warren/kit/abortable'
import type { Deps } from '../../deps.ts'
import type { StoredObject } from '../../snapshots/manifest.ts'

export type Compactor = ReturnType<typeof createCompactor>

export function createCompactor(getDeps: () => Deps) {
  const waiting = new Set<string>()
  let working: Promise<void> | undefined

  async function work(): Promise<void> {
    const deps = getDeps()
    for (const id of waiting) {
      waiting.delete(id)
      if (deps.stopping.aborted) return
      try {
        deps.volume.checkFloor('a merged layer')
        while (await compactOnce(deps, id)) if (deps.stopping.aborted) return
      } catch (error) {
        if (deps.stopping.aborted) return
        deps.log.warn({ err: error, sandbox: id }, 'failed to merge disk layers; the longer chain stays in use')
      }
    }
  }

  return {
    /** Returns at once; the merge runs in the background. */
    add(id: string): void {
      waiting.add(id)
      working ??= work().finally(() => {
        working = undefined
      })
    },
    async close(): Promise<void> {
      await working
    },
  }
}

/** The index of the first layer to merge with all newer ones; the number of layers if a merge is not worth it. */
export function chooseMerge(sizes: readonly number[]): number {
  let from = sizes.length - 1
  for (let above = sizes[from] ?? 0; from > 0 && sizes[from - 1]! <= 2 * above; from--) above += sizes[from - 1]!
  return from === sizes.length - 1 ? sizes.length : from
}

async function compactOnce(deps: Deps, id: string): Promise<boolean> {
  const newest = deps.snapshots.findNewestIntact(id)
  if (!newest) return false
  const { manifest } = newest
  const from = chooseMerge(manifest.disk.map((layer) => layer.bytes))
  if (from >= manifest.disk.length) return false
  const old = manifest.disk.slice(from)
  const mergedId = newMergedId()
  const reservation = deps.snapshots.reserve([...old.map((layer) => layer.id), mergedId])
  try {
    const merged = await merge(deps, old, mergedId)
    return await deps.snapshots.replace(manifest, { ...manifest, disk: [...manifest.disk.slice(0, from), merged] })
  } finally {
    await reservation.release()
  }
}

async function merge(deps: Deps, layers: StoredObject[], id: string): Promise<StoredObject> {
  // What an aborted merge has written is removed with its reservation.
  const merged = deps.workers.run('mergeAndVerify', renderMerge(deps, layers, id))
  return { id, ...(await abortable(merged, deps.stopping)) }
}

export const newMergedId = (): string => `merged-${randomBytes(8).toString('hex')}`

/** The job that merges `layers`, oldest first, into the object `id`. */
export const renderMerge = ({ snapshots }: Pick<Deps, 'snapshots'>, layers: readonly StoredObject[], id: string) => ({
  layers: layers.map((layer) => ({ file: snapshots.fileOf(layer.id), checksums: layer })),
  out: snapshots.fileOf(id),
  // QEMU takes its backing files from the command line; the name in the header is only information.
  backing: 'below',
})
