/**
 * Bases that nobody will ask for again go when a host agent starts: of an image, kernel, QEMU or agent that is not the
 * current one, or damaged, and with no sandbox made from them; and what is left of builds that were killed.
 */
import { readdir, readFile, rm } from 'node:fs/promises'
import path from 'node:path'
import { isDeepStrictEqual } from 'node:util'
import type { Deps } from '../deps.ts'
import type { VmRecord } from '../vms/registry.ts'
import { DAMAGED } from './base.ts'

type Pruning = Pick<Deps, 'config' | 'images' | 'initramfs' | 'kernel' | 'log' | 'machine' | 'snapshots'>

/** Before any is built. */
export async function pruneBases(deps: Pruning, records: readonly Pick<VmRecord, 'body'>[]): Promise<void> {
  const folder = path.join(deps.config.dataDir, 'bases')
  const removed: string[] = []
  try {
    const needed = listNeeded(deps, records)
    const images = await listImages(deps)
    for (const name of await readdir(folder).catch(() => [])) {
      if (needed.has(name.replace(DAMAGED, '')) || (await isCurrent(deps, path.join(folder, name), images))) continue
      await rm(path.join(folder, name), { recursive: true, force: true })
      removed.push(name)
    }
  } catch (error) {
    // They cost room, nothing else: no reason not to start.
    deps.log.warn({ err: error }, 'could not remove superseded bases')
  }
  if (removed.length > 0) deps.log.info({ removed }, 'removed superseded bases')
}

function listNeeded({ snapshots }: Pruning, records: readonly Pick<VmRecord, 'body'>[]): Set<string> {
  const ofRunning = records.flatMap(({ body }) => body?.base ?? [])
  const ofSaved = [...snapshots.listAll().values()].flat().flatMap(({ manifest }) => manifest?.needs.base ?? [])
  return new Set([...ofRunning, ...ofSaved])
}

async function listImages({ images }: Pruning): Promise<Set<string>> {
  const ready = (await images.list()).filter(({ state }) => state === 'ready')
  const found = await Promise.all(ready.map(({ name }) => images.find(name)))
  return new Set(found.flatMap((image) => image?.digest ?? []))
}

/** Whether a create of today could ask for it. One that is being built has no manifest yet. */
async function isCurrent(
  { machine, kernel, initramfs }: Pruning,
  folder: string,
  images: ReadonlySet<string>,
): Promise<boolean> {
  if (folder.endsWith(DAMAGED)) return false
  const text = await readFile(path.join(folder, 'manifest.json'), 'utf8').catch(() => undefined)
  const facts = parse(text ?? '')
  return (
    facts !== undefined &&
    isDeepStrictEqual(facts.machine, { ...machine }) &&
    facts.kernel === kernel.digest &&
    facts.initramfs === initramfs.digest &&
    images.has(facts.image)
  )
}

function parse(text: string) {
  try {
    return JSON.parse(text)
  } catch {
    return undefined // None, or nobody can read it any more.
  }
}
