/** The kernel modules that a guest needs, and their load order. */
import { readdir, readFile } from 'node:fs/promises'
import path from 'node:path'

/** Loaded at boot, before the disk is mounted. Modules that are built into the kernel are skipped. */
export const BOOT_MODULES = ['virtio_pci', 'virtio_blk', 'virtio_console', 'virtio_net', 'fuse']

/** Stored with the kernel for features that load them later. */
export const LATER_MODULES = [
  'overlay',
  'tun',
  'veth',
  'bridge',
  'wireguard',
  'virtio_balloon',
  'virtio_rng',
  'nf_tables',
].concat([
  'nft_ct',
  'nft_nat',
  'nft_masq',
  'nft_compat',
  'nft_chain_nat',
  'xt_MASQUERADE',
  'xt_conntrack',
  'xt_addrtype',
])

/** The kernel does not distinguish `-` and `_` in module names, and file names may have either. */
export const moduleName = (file: string): string =>
  path
    .basename(file)
    .replace(/\.ko(\.xz)?$/, '')
    .replaceAll('-', '_')

/** All modules of an unpacked kernel package, by name. */
export async function findModules(folder: string): Promise<Map<string, string>> {
  const entries = await readdir(folder, { recursive: true })
  const files = entries.filter((entry) => /\.ko(\.xz)?$/.test(entry))
  return new Map(files.map((file) => [moduleName(file), path.join(folder, file)]))
}

/** Sorts modules after their dependencies. Modules without a file are built into the kernel, or unknown, and skipped. */
export async function orderModules(
  wanted: readonly string[],
  has: (name: string) => boolean,
  dependenciesOf: (name: string) => Promise<string[]>,
): Promise<string[]> {
  const ordered: string[] = []
  const visit = async (name: string): Promise<void> => {
    if (ordered.includes(name) || !has(name)) return
    for (const dependency of await dependenciesOf(name)) await visit(dependency)
    ordered.push(name)
  }
  for (const name of wanted) await visit(name)
  return ordered
}

/** Reads `depends=` in the .modinfo section. The output of depmod(8) exists only for an installed kernel. */
export async function readDependencies(file: string): Promise<string[]> {
  const text = await readFile(file, 'latin1')
  const dependencies = /\0depends=([^\0]*)\0/.exec(text)?.[1]
  if (dependencies === undefined) throw new Error(`${file} is not a kernel module`)
  return dependencies
    .split(',')
    .filter((name) => name !== '')
    .map(moduleName)
}
