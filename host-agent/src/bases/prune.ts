/**
 * Removes bases that will not be used again: those of an image, kernel, QEMU or guest agent that is no longer the current
 * one, damaged ones, and leftovers of interrupted builds. Bases that a sandbox was made from stay.
 */
import { readdir, readFile, rm } from 'node:fs/promises'
import path from 'node:path'
import { isDeepStrictEqual } from 'node:util'
import type { Deps } from '../deps.ts'
import { DAMAGED } from './base.ts'
import { pruneSharedBases } from './shared.ts'

type PruneDeps = Pick<Deps, 'config' | 'images' | 'initramfs' | 'kernel' | 'log' | 'machine' | 'snapshots'>

/** `used`: the keys of bases that VMs on this host run on. To be called before any base is built. */
export async function pruneBases(deps: PruneDeps, used: readonly string[]): Promise<void> {
  const folder = path.join(deps.config.dataDir, 'bases')
  const removed: string[] = []
  try {
    const needed = new Set([...used, ...listSaved(deps)])
    const images = await listImages(deps)
    for (const name of await readdir(folder).catch(() => [])) {
      if (needed.has(name.replace(DAMAGED, '')) || (await isCurrent(deps, path.join(folder, name), images))) continue
      await rm(path.join(folder, name), { recursive: true, force: true })
      removed.push(name)
    }
    removed.push(...(await pruneSharedBases(deps, (base) => isCurrent(deps, base, images))))
  } catch (error) {
    // They only take up space, so the host agent starts regardless.
    deps.log.warn({ err: error }, 'failed to remove superseded bases')
  }
  if (removed.length > 0) deps.log.info({ removed }, 'removed superseded bases')
}

function listSaved({ snapshots }: PruneDeps): string[] {
  return [...snapshots.listAll().values()].flat().flatMap(({ manifest }) => manifest?.needs.base ?? [])
}

async function listImages({ images }: PruneDeps): Promise<Set<string>> {
  const ready = (await images.list()).filter(({ state }) => state === 'ready')
  const found = await Promise.all(ready.map(({ name }) => images.find(name)))
  return new Set(found.flatMap((image) => image?.digest ?? []))
}

/** Whether a create could use it today. An unfinished build has no manifest. */
async function isCurrent(
  { machine, kernel, initramfs }: PruneDeps,
  folder: string,
  images: ReadonlySet<string>,
): Promise<boolean> {
  if (folder.endsWith(DAMAGED)) return false
  const text = await readFile(path.join(folder, 'manifest.json'), 'utf8').catch(() => undefined)
  const inputs = parse(text ?? '')
  return (
    inputs !== undefined &&
    isDeepStrictEqual(inputs.machine, { ...machine }) &&
    inputs.kernel === kernel.digest &&
    inputs.initramfs === initramfs.digest &&
    images.has(inputs.image)
  )
}

function parse(text: string) {
  try {
    return JSON.parse(text)
  } catch {
    return undefined // No manifest, or one that cannot be read.
  }
}
