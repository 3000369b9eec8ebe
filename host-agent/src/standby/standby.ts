/**
 * A paused sandbox's body, kept standing still for a while after everything of it is on disk, like a page that stays in
 * the cache after it was written back: whoever resumes soon goes on in the same process, in milliseconds. It is a
 * copy of what is saved and nothing else: it may be dropped at any moment, and is when memory runs short, when others
 * were paused since, when some minutes have passed, or when the host agent ends.
 *
 * The disk it wrote to belongs to the saved generation now and is never written again, so a new layer is put over it
 * before the body counts as kept.
 */
import { chmod, link, readdir, rm } from 'node:fs/promises'
import path from 'node:path'
import { within } from '@warren/kit/stop'
import type { Deps } from '../deps.ts'
import { shortOfMemory } from '../memory-pressure.ts'
import { diskFile } from '../vmm/args.ts'
import { replaceBacking } from '../vmm/disk/block-nodes.ts'
import { createOverlay } from '../vmm/disk/qcow2/overlay.ts'
import { stopVmm, type Vmm, workFolderOf } from '../vmm/vmm.ts'

/** What one costs beside its own pages: QEMU, and the code it has translated. */
const BODY_MIB = 48
const KEPT_MS = 10 * 60_000
const WATCH_MS = 5_000
/** So many layers may lie in a body's own folder. */
const COVERS_MAX = 8
/** Whoever resumes or deletes waits for it, and a QEMU that was taken over may answer as slowly as it likes. */
const COVER_LIMIT_MS = 20_000

type About = { sandbox: string; ip: string; dirtyBytes: number; diskMib: number }
type Kept = { body: Vmm; ip: string; mib: number; since: number }

export type Standby = ReturnType<typeof createStandby>

export function createStandby(getDeps: () => Deps, budgetMib: number) {
  /** By the object its memory was saved as; the oldest first. */
  const kept = new Map<string, Kept>()
  let closed = false
  const timer = setInterval(() => void watch(), WATCH_MS).unref()

  const used = () => [...kept.values()].reduce((sum, one) => sum + one.mib, 0)

  async function watch(): Promise<void> {
    if (shortOfMemory()) return drain()
    for (const [memory, one] of kept) if (Date.now() - one.since > KEPT_MS) await drop(memory)
  }

  async function drop(memory: string): Promise<void> {
    const one = kept.get(memory)
    if (!kept.delete(memory) || !one) return
    await end(one.body)
  }

  async function drain(): Promise<void> {
    for (const memory of [...kept.keys()]) await drop(memory)
  }

  const end = (body: Vmm) =>
    stopVmm(getDeps(), body.record, body).catch((error) => getDeps().log.error({ err: error }, 'a body would not end'))

  return {
    /** Keeps it or ends it; settles when either is done. */
    async add(memory: string, body: Vmm, about: About): Promise<void> {
      const mib = BODY_MIB + Math.ceil(about.dirtyBytes / 1024 / 1024)
      if (closed || mib > budgetMib || shortOfMemory()) return end(body)
      try {
        await within(COVER_LIMIT_MS, coverDisk(getDeps(), body, about), 'to keep it')
      } catch (error) {
        getDeps().log.warn({ err: error }, 'could not keep the body of a paused sandbox')
        return end(body)
      }
      kept.set(memory, { body, ip: about.ip, mib, since: Date.now() })
      void body.qmp.closed.then(() => drop(memory))
      for (const oldest of [...kept.keys()]) if (used() > budgetMib) await drop(oldest)
    },
    /** The body that has just this memory and address, if there still is one. From now on it is the caller's. */
    take(memory: string, ip: string): Vmm | undefined {
      const one = kept.get(memory)
      if (!one) return undefined
      if (one.ip !== ip) {
        void drop(memory) // Its address is no longer the sandbox's.
        return undefined
      }
      kept.delete(memory)
      one.body.ending = false
      return one.body
    },
    drop,
    async close(): Promise<void> {
      closed = true
      clearInterval(timer)
      await drain()
    },
  }
}

async function coverDisk(deps: Deps, body: Vmm, { sandbox, diskMib }: About): Promise<void> {
  const { record } = body
  const disk = await body.newestDisk()
  await addDisk(deps, body, disk + 1, diskMib)
  await body.freezeDisk(disk)
  // All it wrote before is in the saved generation.
  record.firstDisk = disk + 1
  record.covers = (record.covers ?? 0) + 1
  if (record.covers >= COVERS_MAX) await shorten(deps, sandbox, body)
  deps.log.debug({ body: record.id }, 'kept on standby')
}

/**
 * QEMU takes the longer for whatever it does with a disk the more layers it has open. The generation that was just saved
 * says the same with a handful of them, merged in the background (compact.ts): the newest layer, still empty, is put
 * over those.
 */
async function shorten(deps: Deps, sandbox: string, body: Vmm): Promise<void> {
  const { record } = body
  const newest = await body.newestDisk()
  const layers = deps.snapshots.findNewest(sandbox)?.manifest.disk.map((layer) => layer.id)
  if (!layers) throw new Error('its generation is gone')
  // In the same breath as they were looked up.
  deps.snapshots.retain(record.id, layers)
  const work = workFolderOf(deps, record.id)
  const files = layers.map((_, i) => `under-${newest}-${i}.qcow2`)
  for (const [i, layer] of layers.entries()) {
    const file = deps.snapshots.fileOf(layer)
    await chmod(file, 0o444) // One that was merged is root's alone, and lies where only root comes.
    await link(file, path.join(work, files[i]!))
  }
  await replaceBacking(body.qmp, newest, files)
  const kept = new Set([...files, diskFile(newest)])
  for (const name of await readdir(work)) {
    if (/^(disk|under)-/.test(name) && !kept.has(name)) await rm(path.join(work, name))
  }
  await deps.snapshots.release(
    record.id,
    record.layers.filter((layer) => !layers.includes(layer)),
  )
  record.layers = layers
  record.covers = 0
}

/** An empty layer in the body's own folder, for when the disk under it is frozen. */
export async function addDisk(deps: Deps, body: Vmm, n: number, diskMib: number): Promise<void> {
  const { id, uid } = body.record
  const work = workFolderOf(deps, id)
  const backing = { file: path.join(work, diskFile(n - 1)), format: 'qcow2' as const }
  await createOverlay(path.join(work, diskFile(n)), { sizeMib: diskMib, backing, owner: uid })
}
