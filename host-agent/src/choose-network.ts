/**
 * Chooses the block of addresses for the sandboxes of this instance and opens the network with it. `WARREN_SANDBOX_CIDR`
 * decides; by default the block of the previous start, or one that no other Warren on the machine uses. The choice is stored
 * in the data directory, because sandboxes keep their addresses across restarts.
 */
import { readdir, readFile } from 'node:fs/promises'
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
  const candidates = config.cidr === '' ? await findCandidates(config, previous) : [config.cidr]
  for (const cidr of candidates) {
    try {
      const network = await openNetwork(log, {
        instance: config.instance,
        cidr,
        api: { port: config.apiPort, beyondLoopback: !isLoopback(config.apiHost) },
        poolSize: READY_SLOTS,
        tapOwnerUid: 0,
        proxyUid: config.egressProxyUid,
        stateDir: networkStateDir(config),
        privateCidrs: config.egressPrivateCidrs,
        ...(config.disks && { s3Proxy: { uid: config.s3ProxyUid, privateCidrs: config.diskPrivateCidrs } }),
        limits: {
          flows: config.sandboxFlows,
          newFlowsPerSecond: config.sandboxNewFlowsPerSecond,
          packetsPerSecond: config.sandboxPacketsPerSecond,
          dnsPerSecond: config.sandboxDnsPerSecond,
        },
      })
      if (cidr !== previous) await writeFileDurably(file, JSON.stringify({ cidr }))
      return { network, cidr }
    } catch (error) {
      const isTaken = /WARREN_SANDBOX_CIDR/.test(errorText(error))
      if (!isTaken || cidr === candidates.at(-1)) throw error
    }
  }
  throw new Error('no block of addresses is free; set WARREN_SANDBOX_CIDR')
}

/** Sandboxes have addresses of the previous block, so no other one is tried in its place while there are any. */
export async function findCandidates(
  { dataDir, instance }: Pick<Config, 'dataDir' | 'instance'>,
  previous: string | undefined,
): Promise<string[]> {
  if (previous === undefined) return defaultBlocks(instance)
  const records = await readdir(path.join(dataDir, 'vms')).catch((error) => {
    if (error.code === 'ENOENT') return []
    throw error
  })
  return records.length > 0 ? [previous] : [previous, ...defaultBlocks(instance)]
}

/**
 * In an order that begins at a block derived from the instance's name. If all instances began at the first block, one that is
 * started while another is stopped would take the block of the stopped one, which then could not start again. Two names can
 * still begin at the same block: there are only 32.
 */
function defaultBlocks(instance: string): string[] {
  const first = Number.parseInt(instance, 16) % BLOCKS
  return Array.from({ length: BLOCKS }, (_, i) => `100.${FIRST_BLOCK + ((first + i) % BLOCKS)}.0.0/16`)
}

/** The networks of slots in use, for the next host agent. Beside the sockets and, like them, lost at a restart of the machine. */
export const networkStateDir = (config: Pick<Config, 'runDir'>): string => path.join(config.runDir, 'network')
