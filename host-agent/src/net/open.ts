/**
 * The network of this host, opened in order: netd, the host's table, the resolver. Then the caller adopts the slots of
 * living VMs (`slots.adopt`), reaps the rest (`reap`) and lets the pool fill (`slots.start`).
 *
 * Closing stops what runs in this process and netd; sandboxes keep their network, except for names.
 */
import type { Log } from '@warren/kit/log'
import { startDns } from './dns/server.ts'
import { hostUpstreams, type Upstream } from './dns/upstreams.ts'
import { HOST_ADDRESS } from './names.ts'
import { Netd } from './netd-client.ts'
import type { HostNetwork, HostSettings, Released } from './netd-protocol.ts'
import { SlotPool } from './slots.ts'

export type NetworkSettings = Omit<HostSettings, 'dnsPort'> & {
  instance: string
  /** Ready slots. */
  poolSize: number
  tapOwnerUid: number
  /** Asked instead of the host's own name servers: for tests. */
  upstreams?: () => Promise<Upstream[]>
}

export type Network = {
  instance: string
  netd: Netd
  slots: SlotPool
  host: HostNetwork
  dnsPort: number
  /** Every slot that no VM has adopted or claimed and the pool did not make. After the programs of dead VMs have ended. */
  reap: () => Promise<Released[]>
  close: () => Promise<void>
}

/** Below the ports the kernel gives out by itself, one per instance, and the next when somebody has it. */
const DNS_PORT_FIRST = 20_000
const DNS_PORTS = 10_000
const DNS_PORT_TRIES = 20

export async function openNetwork(log: Log, settings: NetworkSettings): Promise<Network> {
  const { instance, poolSize, tapOwnerUid, upstreams = hostUpstreams(), ...forHost } = settings
  const netd = new Netd(instance)
  netd.on('died', (how) => log.warn(how, 'netd died; the next request starts another'))
  try {
    for (let attempt = 0; ; attempt++) {
      const dnsPort = DNS_PORT_FIRST + ((Number.parseInt(instance, 16) + attempt) % DNS_PORTS)
      // First, because it gives the host the address the resolver listens on.
      const host = await netd.request('setUpHost', { ...forHost, dnsPort })
      try {
        const dns = await startDns({ upstreams, log }, HOST_ADDRESS, dnsPort)
        for (const warning of host.warnings) log.warn(warning)
        const slots = new SlotPool({ netd, log }, { size: poolSize, mtu: host.mtu, tapOwnerUid })
        return {
          instance,
          netd,
          slots,
          host,
          dnsPort,
          reap: async () => (await netd.request('reapAll', { except: slots.taken })).released,
          close: async () => {
            await slots.close()
            await dns.close()
            await netd.close()
          },
        }
      } catch (error) {
        if ((error as NodeJS.ErrnoException).code !== 'EADDRINUSE' || attempt >= DNS_PORT_TRIES) throw error
      }
    }
  } catch (error) {
    await netd.close()
    throw new Error('could not open the network', { cause: error })
  }
}
