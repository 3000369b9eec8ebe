/**
 * Chooses the block of addresses for the sandboxes of this instance and opens the network with it. `WARREN_SANDBOX_CIDR`
 * decides; by default the block of the previous start, or the first one that no other Warren on the machine uses. The
 * choice is stored in the data directory, because sandboxes keep their addresses across restarts.
 */
import { readFile } from 'node:fs/promises'
import path from 'node:path'
import { errorText } from '@warren/kit/error-text'
import { writeFileDurably } from '@warren/kit/files'
import type { Log } from '@warren/kit/log'
import { isLoopback } from '@warren/kit/shared-settings'
import type { Config } from './config.ts'
import { type Network, openNetwork } from './net/open.ts'

const READY_SLOTS = 8
/** The first of the default blocks, 100.64.0.0/16: in the shared address space (RFC 6598), which private networks avoid. */
const FIRST_BLOCK = 64
const BLOCKS = 32

export async function chooseNetwork(config: Config, log: Log): Promise<{ network: Network; cidr: string }> {
  const file = path.join(config.dataDir, 'network.json')
  const previous = await readFile(file, 'utf8').then(
    (text) => (JSON.parse(text) as { cidr: string }).cidr,
    () => undefined,
  )
  const candidates = config.cidr === '' ? defaultCandidates(previous) : [config.cidr]
  for (const cidr of candidates) {
    try {
      const network = await openNetwork(log, {
        instance: config.instance,
        cidr,
        api: { port: config.apiPort, beyondLoopback: !isLoopback(config.apiHost) },
        poolSize: READY_SLOTS,
        tapOwnerUid: 0,
        stateDir: networkStateDir(config),
        privateCidrs: config.egressPrivateCidrs,
      })
      if (cidr !== previous) await writeFileDurably(file, JSON.stringify({ cidr }))
      return { network, cidr }
    } catch (error) {
      // Sandboxes may have addresses of the previous block, so no other one is tried in its place.
      const isTaken = /WARREN_SANDBOX_CIDR/.test(errorText(error))
      if (!isTaken || cidr === previous || cidr === candidates.at(-1)) throw error
    }
  }
  throw new Error('no block of addresses is free; set WARREN_SANDBOX_CIDR')
}

function defaultCandidates(previous: string | undefined): string[] {
  if (previous !== undefined) return [previous]
  return Array.from({ length: BLOCKS }, (_, i) => `100.${FIRST_BLOCK + i}.0.0/16`)
}

/** The networks of slots in use, for the next host agent. Beside the sockets and, like them, lost at a restart of the machine. */
export const networkStateDir = (config: Pick<Config, 'runDir'>): string => path.join(config.runDir, 'network')
