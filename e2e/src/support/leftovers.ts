/** What a Warren has on the machine outside its data directory. */
import { spawnSync } from 'node:child_process'
import { rm } from 'node:fs/promises'
import path from 'node:path'
import { instanceName } from '@warren/kit/instance-name'
import { type Leftover, listLeftovers as listOfOwner } from '@warren/kit/testing/leftovers'

const CLEAN_UP = path.resolve(import.meta.dirname, '../../../host-agent/src/clean-up/main.ts')

export const listLeftovers = (dataDir: string): Leftover[] =>
  listOfOwner({ folder: dataDir, instances: [instanceName(dataDir)] })

/**
 * Removes what a test left on the machine whose Warren was killed: with the program that `warren start` runs after a
 * host agent was killed. Sandboxes would keep running, so their records are deleted first.
 */
export async function removeLeftovers(dataDir: string): Promise<void> {
  if (listLeftovers(dataDir).length === 0) return
  await rm(path.join(dataDir, 'vms'), { recursive: true, force: true })
  const env = { PATH: process.env.PATH, WARREN_DATA_DIR: dataDir }
  const { status, stderr } = spawnSync(process.execPath, [CLEAN_UP], { env, encoding: 'utf8' })
  if (status !== 0) throw new Error(`failed to remove the leftovers of ${dataDir}: ${stderr}`)
}
