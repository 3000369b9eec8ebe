/**
 * Bases: a VM is booted once for each image, shape and disk size, warmed up, paused and saved. Every sandbox starts as a
 * clone of a base. This file has what a base is and how an existing one is found; ensure.ts builds them.
 *
 * A saved device state carries no checksum, not even proof that it belongs to its memory. Therefore the key of a base is
 * a hash of everything it depends on, and its files are never written again.
 */
import { readFile } from 'node:fs/promises'
import path from 'node:path'
import { type Static, Type } from 'typebox'
import { Compile } from 'typebox/compile'
import type { Deps } from '../deps.ts'
import { HostError } from '../host-error.ts'
import { findDamage } from './check.ts'
import type { BaseFiles } from './files.ts'

const BaseManifest = Type.Object({
  id: Type.String({ description: 'Of this build: another build from the same inputs has other memory.' }),
  shape: Type.Object({ vcpu: Type.Integer(), mem_mib: Type.Integer() }),
  diskMib: Type.Integer(),
})
/** Compiled, because every create reads the manifest of its base. */
const manifestSchema = Compile(BaseManifest)

export type Base = Static<typeof BaseManifest> & {
  key: string
  folder: string
  files: BaseFiles
}

/** The disk size of most sandboxes. A larger disk grows from this base; a smaller one has a separate base. */
export const BASE_DISK_MIB = 10_240

/** Suffix of a damaged base's folder. Nothing new starts from it, and a resume that needs it fails with the damage. */
export const DAMAGED = '.damaged'

/** The build that a sandbox was made from, perhaps by an older version. A sandbox must not run on another build. */
export async function getBase(deps: Deps, wanted: { base: string; baseId: string }): Promise<Base> {
  // A damaged base is checked again: the disk may have recovered from a read error.
  for (const key of [wanted.base, damagedKey(wanted.base)]) {
    const found = await readBase(deps, key)
    if (found?.id !== wanted.baseId) continue
    const damage = await findDamage(deps, found)
    if (damage === undefined) return found
    throw new HostError('snapshot_damaged', `the base it was made from is damaged: ${damage}`)
  }
  throw new HostError('snapshot_incompatible', 'the base it was made from is not on this host')
}

/** Undefined if there is no base with this key, or its manifest cannot be read. */
export async function readBase(deps: Pick<Deps, 'config'>, key: string): Promise<Base | undefined> {
  const place = locateBase(deps, key)
  const text = await readFile(path.join(place.folder, 'manifest.json'), 'utf8').catch(() => undefined)
  if (text === undefined) return undefined
  try {
    const manifest: unknown = JSON.parse(text)
    if (!manifestSchema.Check(manifest)) return undefined
    return { ...place, id: manifest.id, shape: manifest.shape, diskMib: manifest.diskMib }
  } catch {
    return undefined // Not JSON. The next create that needs this base builds it again.
  }
}

export function locateBase(deps: Pick<Deps, 'config'>, key: string): Pick<Base, 'key' | 'folder' | 'files'> {
  const folder = path.join(deps.config.dataDir, 'bases', key)
  return { key, folder, files: filesIn(folder) }
}

export const damagedKey = (key: string): string => `${key}${DAMAGED}`

export const filesIn = (folder: string): BaseFiles => ({
  image: path.join(folder, 'root.ext4'),
  disk: path.join(folder, 'disk.qcow2'),
  ram: path.join(folder, 'ram'),
  state: path.join(folder, 'state'),
})
