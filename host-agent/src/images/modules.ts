/** Kernel modules: which a guest needs, and in which order they load. */
import { readdir, readFile } from 'node:fs/promises'
import path from 'node:path'

/** Loaded at boot, before the disk is mounted; what a kernel has built in is left out. */
export const BOOT_MODULES = ['virtio_pci', 'virtio_blk', 'virtio_console', 'virtio_net', 'fuse']

/** Kept beside the kernel for features that load them later. */
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

/** Files and module names differ in `-` and `_`; the kernel takes both as one. */
export const moduleName = (file: string): string =>
  path
    .basename(file)
    .replace(/\.ko(\.xz)?$/, '')
    .replaceAll('-', '_')

/** All modules of an unpacked kernel package by their name. */
export async function findModules(folder: string): Promise<Map<string, string>> {
  const entries = await readdir(folder, { recursive: true })
  const files = entries.filter((entry) => /\.ko(\.xz)?$/.test(entry))
  return new Map(files.map((file) => [moduleName(file), path.join(folder, file)]))
}

/** Each after those it needs. What is in no file is built into the kernel, or unknown to it. */
export async function orderModules(
  wanted: readonly string[],
  has: (name: string) => boolean,
  needsOf: (name: string) => Promise<string[]>,
): Promise<string[]> {
  const ordered: string[] = []
  const visit = async (name: string): Promise<void> => {
    if (ordered.includes(name) || !has(name)) return
    for (const needed of await needsOf(name)) await visit(needed)
    ordered.push(name)
  }
  for (const name of wanted) await visit(name)
  return ordered
}

/** The `depends=` of its .modinfo section; depmod(8) reads the same, but writes it only when a kernel is installed. */
export async function readNeeds(file: string): Promise<string[]> {
  const text = await readFile(file, 'latin1')
  const needs = /\0depends=([^\0]*)\0/.exec(text)?.[1]
  if (needs === undefined) throw new Error(`${file} is no kernel module`)
  return needs
    .split(',')
    .filter((name) => name !== '')
    .map(moduleName)
}
