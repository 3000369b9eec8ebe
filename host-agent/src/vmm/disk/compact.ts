/**
 * Every resume puts a fresh layer of disk over what was saved, so every pause makes the chain longer by one. In the
 * background the newest layers are merged into one as long as each is at most twice as large as all above it together:
 * sizes then grow downwards at least threefold, the chain stays a handful long whatever was written, and a byte is
 * rewritten only a few times in its life.
 *
 * A generation's meaning never changes: its manifest is replaced by one that says the same with fewer objects. A body
 * that runs on the old ones keeps them open; its next pause takes up the new ones (pause.ts).
 */
import { randomBytes } from 'node:crypto'
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
        while (await compactOnce(deps, id)) if (deps.stopping.aborted) return
      } catch (error) {
        deps.log.warn({ err: error, sandbox: id }, 'could not merge layers of a disk; it works as it is')
      }
    }
  }

  return {
    /** Nobody waits for it. */
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

/** From which layer on the newest ones are worth merging; their number when none are. */
export function chooseMerge(sizes: readonly number[]): number {
  let from = sizes.length - 1
  for (let above = sizes[from] ?? 0; from > 0 && sizes[from - 1]! <= 2 * above; from--) above += sizes[from - 1]!
  return from === sizes.length - 1 ? sizes.length : from
}

async function compactOnce(deps: Deps, id: string): Promise<boolean> {
  const newest = deps.snapshots.findNewest(id)
  if (!newest) return false
  const { manifest } = newest
  const from = chooseMerge(manifest.disk.map((layer) => layer.bytes))
  if (from >= manifest.disk.length) return false
  const old = manifest.disk.slice(from)
  const mergedId = `merged-${randomBytes(8).toString('hex')}`
  const reservation = deps.snapshots.reserve([...old.map((layer) => layer.id), mergedId])
  try {
    const merged = await merge(deps, old, mergedId)
    return await deps.snapshots.replace(manifest, { ...manifest, disk: [...manifest.disk.slice(0, from), merged] })
  } finally {
    await reservation.release()
  }
}

async function merge(deps: Deps, layers: StoredObject[], id: string): Promise<StoredObject> {
  const checked = layers.map((layer) => ({ file: deps.snapshots.fileOf(layer.id), checksums: layer }))
  // What backs it is said on QEMU's command line; the name inside is for people.
  const job = { layers: checked, out: deps.snapshots.fileOf(id), backing: 'below' }
  return { id, ...(await deps.workers.run('mergeAndVerify', job)) }
}
