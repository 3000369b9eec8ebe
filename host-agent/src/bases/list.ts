/** The bases of this data directory and those that are being built, for operators. */
import { lstat, readdir } from 'node:fs/promises'
import path from 'node:path'
import type { HostBase } from '@warren/protocol'
import type { Deps } from '../deps.ts'
import { findVmmRecord, type VmRecord } from '../vms/record.ts'
import { type Base, DAMAGED, readBase } from './base.ts'
import type { Build } from './builds.ts'
import { hasCurrentSettings, isCurrent, listCurrentImages, readInputs } from './current.ts'

type ListDeps = Pick<Deps, 'config' | 'images' | 'initramfs' | 'kernel' | 'machine' | 'operatorSettings' | 'snapshots'>

/** By image, then shape, then disk size. */
export async function listBases(
  deps: ListDeps,
  records: readonly VmRecord[],
  builds: readonly Build[],
): Promise<HostBase[]> {
  const names = await readdir(path.join(deps.config.dataDir, 'bases')).catch(() => [])
  const images = await listCurrentImages(deps)
  const users = listUsers(deps, records)
  const found = await Promise.all(names.map((name) => readBase(deps, name)))
  const bases = (await Promise.all(found.map((base) => base && describe(deps, base, images, users)))).flatMap(
    (base) => base ?? [],
  )
  const known = new Set(bases.map(({ key, state }) => (state === 'damaged' ? '' : key)))
  const building = builds.filter(({ wanted }) => !known.has(wanted.key)).map(describeBuild)
  return [...bases, ...building].sort(compare)
}

/** Undefined if it was removed meanwhile. */
async function describe(
  deps: ListDeps,
  { key: name, id, folder, shape, diskMib }: Base,
  images: ReadonlyMap<string, string>,
  users: ReadonlyMap<string, ReadonlySet<string>>,
): Promise<HostBase | undefined> {
  const inputs = await readInputs(folder)
  if (!inputs) return undefined
  const key = name.replace(DAMAGED, '')
  const image = images.get(inputs.image) ?? inputs.imageName
  const made = await lstat(path.join(folder, 'manifest.json')).catch(() => undefined)
  const isUsable = isCurrent(deps, inputs, images) && hasCurrentSettings(deps, inputs)
  return {
    key,
    ...(image === undefined ? {} : { image }),
    ...{ vcpu: shape.vcpu, mem_mib: shape.mem_mib, disk_mib: diskMib },
    state: name.endsWith(DAMAGED) ? 'damaged' : isUsable ? 'ready' : 'superseded',
    size_bytes: await measure(folder),
    vms: users.get(`${key} ${id}`)?.size ?? 0,
    ...(made && { made_at: made.mtime.toISOString() }),
  }
}

const describeBuild = ({ wanted, progress }: Build): HostBase => ({
  key: wanted.key,
  image: wanted.image.name,
  ...wanted.shape,
  disk_mib: wanted.diskMib,
  state: 'building',
  progress,
  size_bytes: 0,
  vms: 0,
})

/** The sandboxes that were made from each build, whether they run, are saved, or both. */
function listUsers({ snapshots }: ListDeps, records: readonly VmRecord[]): Map<string, ReadonlySet<string>> {
  const users = new Map<string, Set<string>>()
  const add = (base: string, baseId: string, sandbox: string) => {
    const name = `${base} ${baseId}`
    users.set(name, (users.get(name) ?? new Set()).add(sandbox))
  }
  for (const record of records) {
    const vmm = findVmmRecord(record)
    if (vmm) add(vmm.base, vmm.baseId, record.id)
  }
  for (const [sandbox, generations] of snapshots.listAll()) {
    for (const { manifest } of generations) if (manifest) add(manifest.needs.base, manifest.needs.baseId, sandbox)
  }
  return users
}

/** Files have holes, so their length says little. The image belongs to the image store. */
async function measure(folder: string): Promise<number> {
  let bytes = 0
  for (const name of await readdir(folder).catch(() => [])) {
    const found = name === 'root.ext4' ? undefined : await lstat(path.join(folder, name)).catch(() => undefined)
    if (found?.isFile()) bytes += found.blocks * 512
  }
  return bytes
}

const compare = (one: HostBase, other: HostBase): number =>
  (one.image ?? '').localeCompare(other.image ?? '') ||
  one.vcpu - other.vcpu ||
  one.mem_mib - other.mem_mib ||
  one.disk_mib - other.disk_mib ||
  (one.made_at ?? '').localeCompare(other.made_at ?? '')
