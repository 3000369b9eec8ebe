/**
 * The QMP commands that change the disk chain of a running QEMU. In QEMU each file of the chain is a block node. The
 * disks of the VMM are named after their number (args.ts): node `d3` is the file `disk-3.qcow2`.
 */
import { diskFile, diskNode, inWork } from '../args.ts'
import type { Qmp } from '../qmp.ts'

const MIB = 1024 * 1024

/** The number of the disk that QEMU writes to. */
export async function queryActiveDisk(qmp: Qmp): Promise<number> {
  const devices = await qmp.run<{ inserted?: { 'node-name'?: string } }[]>('query-block')
  for (const { inserted } of devices) {
    const [, number] = /^d(\d{1,6})$/.exec(inserted?.['node-name'] ?? '') ?? []
    if (number !== undefined) return Number(number)
  }
  throw new Error('query-block names no disk of the form d<number>')
}

/**
 * Makes the disk larger; the guest is notified, also if the disk has this size already. The caller makes sure that it is
 * not larger: QEMU would make it smaller.
 */
export async function resizeActiveDisk(qmp: Qmp, disk: number, diskMib: number): Promise<void> {
  await qmp.run('block_resize', { 'node-name': diskNode(disk), size: diskMib * MIB })
}

/** The size of the disk that the guest sees, rounded up. */
export async function queryDiskMib(qmp: Qmp, disk: number): Promise<number> {
  const nodes = await qmp.run<BlockNode[]>('query-named-block-nodes', { flat: true })
  const bytes = nodes.find((node) => node['node-name'] === diskNode(disk))?.image?.['virtual-size']
  if (bytes === undefined) throw new Error(`query-named-block-nodes does not list ${diskNode(disk)}`)
  return Math.ceil(bytes / MIB)
}

type BlockNode = { 'node-name'?: string; image?: { 'virtual-size'?: number } }

/** Makes `disk` read-only and puts the next one, whose file exists already, on top. If it fails, nothing has changed. */
export async function freezeDisk(qmp: Qmp, disk: number): Promise<void> {
  const [frozen, next] = [diskNode(disk), diskNode(disk + 1)]
  await qmp.run('blockdev-add', fileNode(disk + 1))
  try {
    await qmp.run('blockdev-add', { ...diskLayerNode(disk + 1), backing: null })
    try {
      await qmp.run('blockdev-snapshot', { node: frozen, overlay: next })
    } catch (error) {
      await qmp.run('blockdev-del', { 'node-name': next })
      throw error
    }
  } catch (error) {
    await qmp.run('blockdev-del', { 'node-name': fileNodeName(next) })
    throw error
  }
}

/**
 * Puts `disk` on top of `files` (in the work folder, oldest first), which have the same content as what is below it
 * now, and closes the nodes that were below it.
 */
export async function replaceBacking(qmp: Qmp, disk: number, files: readonly string[]): Promise<void> {
  const before = await listNodes(qmp)
  const names = files.map((_, i) => `u${disk}-${i}`)
  for (const [i, name] of files.entries()) {
    const backing = names[i - 1] ?? 'base'
    const file = { driver: 'file', filename: inWork(name), locking: 'off' }
    await qmp.run('blockdev-add', { driver: 'qcow2', 'node-name': names[i], 'read-only': true, backing, file })
  }
  await qmp.run('blockdev-reopen', { options: [{ ...diskLayerNode(disk), backing: names.at(-1) }] })
  const active = diskNode(disk)
  const replaced = before.filter((name) => name !== active && name !== fileNodeName(active))
  // Newest first: a node is in use until the one above it is closed.
  for (const name of replaced) await qmp.run('blockdev-del', { 'node-name': name })
}

/** All nodes but those of the base and its image, newest first, each before the node of its file. */
async function listNodes(qmp: Qmp): Promise<string[]> {
  const nodes = await qmp.run<{ 'node-name'?: string }[]>('query-named-block-nodes', { flat: true })
  const names = nodes.map((node) => node['node-name'] ?? '')
  return names.filter((name) => NODE.test(name)).sort((one, other) => heightOf(other) - heightOf(one))
}

/** `d3` and `d3-file`: a disk; `u3-0`: a layer from `replaceBacking`; `layer0`: a layer from the command line. */
const NODE = /^(?:d(\d+)(-file)?|u\d+-(\d+)|layer(\d+))$/
/** More than a chain has layers, so that every disk is above every layer. */
const DISKS_ABOVE = 1_000_000

/** Greater for a node that is higher in the chain. */
function heightOf(name: string): number {
  const [, disk, file, replacement, layer] = NODE.exec(name) ?? []
  if (disk === undefined) return Number(replacement ?? layer)
  return DISKS_ABOVE + Number(disk) - (file === undefined ? 0 : 0.5)
}

const diskLayerNode = (disk: number) => ({
  driver: 'qcow2',
  'node-name': diskNode(disk),
  discard: 'unmap',
  file: fileNodeName(diskNode(disk)),
})

/**
 * The file is a separate node. QEMU 7.2 opens a file that is part of its layer's node for writing once more when the
 * layer is frozen after `replaceBacking`. By then the file belongs to root and the open would fail.
 */
const fileNode = (disk: number) => ({
  driver: 'file',
  'node-name': fileNodeName(diskNode(disk)),
  filename: inWork(diskFile(disk)),
  locking: 'off',
  discard: 'unmap',
  'auto-read-only': true,
})

const fileNodeName = (node: string): string => `${node}-file`
