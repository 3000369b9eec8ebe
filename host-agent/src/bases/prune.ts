/**
 * Removes bases that will not be used again: those of an image, kernel, QEMU or guest agent that is no longer the current
 * one or that have other settings of the operator, damaged ones, and leftovers of interrupted builds. Bases that a sandbox was made from stay.
 */
import { readdir, rm } from 'node:fs/promises'
import path from 'node:path'
import type { Deps } from '../deps.ts'
import { DAMAGED } from './base.ts'
import { hasCurrentSettings, isCurrent, listCurrentImages, readInputs } from './current.ts'
import { pruneSharedBases } from './shared.ts'

type PruneDeps = Pick<
  Deps,
  'config' | 'images' | 'initramfs' | 'kernel' | 'log' | 'machine' | 'operatorSettings' | 'snapshots'
>

/** `used`: the keys of bases that VMs on this host run on. To be called before any base is built. */
export async function pruneBases(deps: PruneDeps, used: readonly string[]): Promise<void> {
  const folder = path.join(deps.config.dataDir, 'bases')
  const removed: string[] = []
  try {
    const needed = new Set([...used, ...listSaved(deps)])
    const images = await listCurrentImages(deps)
    const isUsable = async (base: string) => {
      const inputs = base.endsWith(DAMAGED) ? undefined : await readInputs(base)
      return inputs !== undefined && isCurrent(deps, inputs, images) && hasCurrentSettings(deps, inputs)
    }
    for (const name of await readdir(folder).catch(() => [])) {
      if (needed.has(name.replace(DAMAGED, '')) || (await isUsable(path.join(folder, name)))) continue
      await rm(path.join(folder, name), { recursive: true, force: true })
      removed.push(name)
    }
    const isShareable = async (base: string) => {
      const inputs = await readInputs(base)
      return inputs !== undefined && isCurrent(deps, inputs, images)
    }
    removed.push(...(await pruneSharedBases(deps, isShareable)))
  } catch (error) {
    // They only take up space, so the host agent starts regardless.
    deps.log.warn({ err: error }, 'failed to remove superseded bases')
  }
  if (removed.length > 0) deps.log.info({ removed }, 'removed superseded bases')
}

function listSaved({ snapshots }: PruneDeps): string[] {
  return [...snapshots.listAll().values()].flat().flatMap(({ manifest }) => manifest?.needs.base ?? [])
}
