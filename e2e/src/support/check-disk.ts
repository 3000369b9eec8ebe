/** Checks the file system of a paused sandbox, after replaying its journal. */
import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { existsSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import path from 'node:path'
import type { VmInstance } from './vm-instance.ts'

type Manifest = { needs: { base: string }; disk: { id: string }[] }

/** The host agent's manifest of the newest generation. */
export function readManifest(
  { instance }: VmInstance,
  id: string,
): Manifest & { file: string; memory: { id: string }; state: { id: string } } {
  const folder = path.join(instance.dataDir, 'snapshots/sandboxes', id)
  const newest = readdirSync(folder)
    .filter((name) => name.endsWith('.json'))
    .sort()
    .at(-1)!
  return { ...JSON.parse(readFileSync(path.join(folder, newest), 'utf8')), file: path.join(folder, newest) }
}

export const objectFile = ({ instance }: VmInstance, id: string): string =>
  path.join(instance.dataDir, 'snapshots/objects', id)

export async function checkDisk(warren: VmInstance, id: string): Promise<void> {
  for (let tries = 0; tries < 5; tries++) if (checkOnce(warren, id)) return
  assert.fail('the disk layers were merged in every attempt to read them')
}

/** Returns false when layers were merged while they were being read. */
function checkOnce(warren: VmInstance, id: string): boolean {
  const { needs, disk } = readManifest(warren, id)
  const base = path.join(warren.instance.dataDir, 'bases', needs.base)
  const layers = [path.join(base, 'disk.qcow2'), ...disk.map((layer) => objectFile(warren, layer.id))]
  let chain: object = { driver: 'raw', file: { driver: 'file', filename: path.join(base, 'root.ext4') } }
  for (const filename of layers) chain = { driver: 'qcow2', file: { driver: 'file', filename }, backing: chain }
  const copy = path.join(warren.instance.dataDir, `check-${id}.raw`)
  try {
    const convert = spawnSync('qemu-img', ['convert', '-U', '-O', 'raw', `json:${JSON.stringify(chain)}`, copy])
    if (convert.status !== 0 && layers.some((file) => !existsSync(file))) return false
    assert.equal(convert.status, 0, `${convert.stderr}`)
    run('e2fsck', ['-y', '-E', 'journal_only', copy])
    run('e2fsck', ['-f', '-n', copy])
    return true
  } finally {
    rmSync(copy, { force: true })
  }
}

function run(command: string, args: string[]): void {
  const { status, stdout, stderr, error } = spawnSync(command, args, { encoding: 'utf8' })
  if (error) throw error
  assert.equal(status, 0, `${command}: ${stdout}${stderr}`)
}
