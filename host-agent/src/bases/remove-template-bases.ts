/**
 * Removes the bases of templates that were deleted, except those that a VM on this host was made from. It can be repeated while
 * the host agent runs, unlike prune.ts.
 */
import { readdir, rm } from 'node:fs/promises'
import path from 'node:path'
import { isTemplateImage } from '@warren/protocol'
import type { Deps } from '../deps.ts'
import { findVmmRecord, type VmRecord } from '../vms/record.ts'
import { DAMAGED } from './base.ts'
import { listCurrentImages, readInputs } from './current.ts'
import { listBuilds } from './ensure.ts'

export async function removeTemplateBases(deps: Deps, listVms: () => readonly VmRecord[]): Promise<void> {
  const folder = path.join(deps.config.dataDir, 'bases')
  const images = await listCurrentImages(deps)
  for (const key of await readdir(folder).catch(() => [])) {
    const inputs = await readInputs(path.join(folder, key))
    if (!inputs?.imageName || !isTemplateImage(inputs.imageName)) continue
    const isNeeded = () => images.has(inputs.image) || isUsed(deps, listVms(), key.replace(DAMAGED, ''))
    if (isNeeded()) continue
    await deps.pool.forget(key)
    if (isNeeded()) continue // A create has begun meanwhile.
    await rm(path.join(folder, key), { recursive: true, force: true })
  }
}

/** A VM that is being created may be about to start from any base. */
function isUsed(deps: Deps, vms: readonly VmRecord[], key: string): boolean {
  const saved = [...deps.snapshots.listAll().values()].flat()
  return (
    vms.some((record) => record.state === 'creating' || findVmmRecord(record)?.base === key) ||
    saved.some(({ manifest }) => manifest?.needs.base === key) ||
    listBuilds().some(({ wanted }) => wanted.key === key)
  )
}
