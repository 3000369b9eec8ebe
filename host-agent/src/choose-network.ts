/**
 * Which addresses the sandboxes of this instance have. `WARREN_SANDBOX_CIDR` decides; without it, the block this
 * instance had before, or the first that no other Warren on the machine has. The choice is kept in the data directory:
 * sandboxes outlive restarts, and their addresses with them.
 */
import { readFile } from 'node:fs/promises'
import path from 'node:path'
import { errorText } from '@warren/kit/error-text'
import { writeFileDurably } from '@warren/kit/files'
import type { Log } from '@warren/kit/log'
import type { Config } from './config.ts'
import { type Network, openNetwork } from './net/open.ts'

const READY_SLOTS = 8
/** In the shared address space of RFC 6598, which no private network should use. */
const FIRST = 64
const BLOCKS = 32

export async function chooseNetwork(config: Config, log: Log): Promise<{ network: Network; cidr: string }> {
  const file = path.join(config.dataDir, 'network.json')
  const before = await readFile(file, 'utf8').then(
    (text) => (JSON.parse(text) as { cidr: string }).cidr,
    () => undefined,
  )
  const candidates = config.cidr === '' ? blocksAfter(before) : [config.cidr]
  for (const cidr of candidates) {
    try {
      const network = await openNetwork(log, {
        instance: config.instance,
        cidr,
        apiPorts: config.apiPort === 0 ? [] : [config.apiPort],
        poolSize: READY_SLOTS,
        tapOwnerUid: 0,
        stateDir: networkStateOf(config),
        privateCidrs: config.egressPrivateCidrs,
      })
      if (cidr !== before) await writeFileDurably(file, JSON.stringify({ cidr }))
      return { network, cidr }
    } catch (error) {
      // Sandboxes may live in the block we had: another one would cut them off.
      const isTaken = /WARREN_SANDBOX_CIDR/.test(errorText(error))
      if (!isTaken || cidr === before || cidr === candidates.at(-1)) throw error
    }
  }
  throw new Error('no block of addresses is free; set WARREN_SANDBOX_CIDR')
}

function blocksAfter(before: string | undefined): string[] {
  if (before !== undefined) return [before]
  return Array.from({ length: BLOCKS }, (_, i) => `100.${FIRST + i}.0.0/16`)
}

/** What each slot was told, for the next host agent: beside the sockets, gone with a restart of the machine like them. */
export const networkStateOf = (config: Pick<Config, 'runDir'>): string => path.join(config.runDir, 'network')
