/**
 * The layers of disk that a running QEMU has open. Only the newest is written to; each has the name of its number
 * (args.ts), and its file, too.
 */
import { diskFile, diskNode, inWork } from '../args.ts'
import type { Qmp } from '../qmp.ts'

/** The number of the disk it writes to. */
export async function queryActiveDisk(qmp: Qmp): Promise<number> {
  const devices = await qmp.run<{ inserted?: { 'node-name'?: string } }[]>('query-block')
  for (const { inserted } of devices) {
    const [, n] = /^d(\d{1,6})$/.exec(inserted?.['node-name'] ?? '') ?? []
    if (n !== undefined) return Number(n)
  }
  throw new Error('QEMU does not say which disk it writes to')
}

/** Disk n becomes a layer that nobody writes to any more; what is written from now on goes to the next. */
export async function freezeDisk(qmp: Qmp, n: number): Promise<void> {
  const [frozen, next] = [diskNode(n), diskNode(n + 1)]
  await qmp.run('blockdev-add', fileNode(n + 1))
  try {
    await qmp.run('blockdev-add', { ...layerNode(n + 1), backing: null })
    try {
      await qmp.run('blockdev-snapshot', { node: frozen, overlay: next })
    } catch (error) {
      await qmp.run('blockdev-del', { 'node-name': next })
      throw error
    }
  } catch (error) {
    await qmp.run('blockdev-del', { 'node-name': fileOf(next) })
    throw error
  }
}

/** Puts disk n over other layers that say the same as those under it, oldest first, and closes what it lay over. */
export async function replaceBacking(qmp: Qmp, n: number, files: readonly string[]): Promise<void> {
  const before = await listLayers(qmp)
  const names = files.map((_, i) => `u${n}-${i}`)
  for (const [i, name] of files.entries()) {
    const backing = names[i - 1] ?? 'base'
    const file = { driver: 'file', filename: inWork(name), locking: 'off' }
    await qmp.run('blockdev-add', { driver: 'qcow2', 'node-name': names[i], 'read-only': true, backing, file })
  }
  await qmp.run('blockdev-reopen', { options: [{ ...layerNode(n), backing: names.at(-1) }] })
  const newest = diskNode(n)
  const gone = before.filter((name) => name !== newest && name !== fileOf(newest))
  // Each is in use until what lies over it is closed.
  for (const name of gone) await qmp.run('blockdev-del', { 'node-name': name })
}

/** All but the base and its image, the newest first, each before its file. */
async function listLayers(qmp: Qmp): Promise<string[]> {
  const nodes = await qmp.run<{ 'node-name'?: string }[]>('query-named-block-nodes', { flat: true })
  const names = nodes.map((node) => node['node-name'] ?? '')
  return names.filter((name) => LAYER.test(name)).sort((one, other) => rank(other) - rank(one))
}

const LAYER = /^(?:d(\d+)(-file)?|u\d+-(\d+)|layer(\d+))$/

/** Its own disks lie over layers it was put over, and those, or the ones it was started with, over the base. */
function rank(name: string): number {
  const [, disk, file, under, layer] = LAYER.exec(name) ?? []
  if (disk === undefined) return Number(under ?? layer)
  return 1_000_000 + Number(disk) - (file === undefined ? 0 : 0.5)
}

const layerNode = (n: number) => ({
  driver: 'qcow2',
  'node-name': diskNode(n),
  discard: 'unmap',
  file: fileOf(diskNode(n)),
})

/**
 * A node of its own: one that is part of its layer's is opened for writing once more when the layer is frozen after it
 * was put over another (QEMU 7.2), which a file that is root's by then does not allow.
 */
const fileNode = (n: number) => ({
  driver: 'file',
  'node-name': fileOf(diskNode(n)),
  filename: inWork(diskFile(n)),
  locking: 'off',
  discard: 'unmap',
  'auto-read-only': true,
})

const fileOf = (node: string): string => `${node}-file`
