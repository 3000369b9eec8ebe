/**
 * The network of this host, opened in order: netd, the host's table, the gate (resolver and proxy). Then the caller
 * adopts the slots of living VMs (`slots.adopt`), reaps the rest (`reap`) and lets the pool fill (`slots.start`).
 *
 * Closing stops netd and the gate; sandboxes keep their network, except for names and proxied connections.
 */
import type { Log } from '@warren/kit/log'
import { parseCidr } from './cidr.ts'
import { Gate } from './egress-proxy-client.ts'
import type { GatePorts, Upstream } from './egress-proxy-protocol.ts'
import { HOST_ADDRESS } from './names.ts'
import { Netd } from './netd-client.ts'
import type { HostNetwork, HostSettings, Released } from './netd-protocol.ts'
import { SlotPool } from './slot-pool.ts'
import { KeptNetworks } from './slot-store.ts'
import { Slots } from './slots.ts'

export type NetworkSettings = Omit<HostSettings, 'gate'> & {
  instance: string
  /** Ready slots. */
  poolSize: number
  tapOwnerUid: number
  /** Where the rules of slots in use are kept for the next host agent; gone after a restart of the machine. */
  stateDir: string
  /** Blocks inside closed ranges that a sandbox's rules may open. */
  privateCidrs?: readonly string[]
  /** Asked instead of the host's own name servers: for tests. */
  upstreams?: Upstream[]
}

export type Network = {
  instance: string
  netd: Netd
  gate: Gate
  slots: Slots
  host: HostNetwork
  gatePorts: GatePorts
  /** Every slot that no VM has adopted or claimed and the pool did not make. After the programs of dead VMs have ended. */
  reap: () => Promise<Released[]>
  close: () => Promise<void>
}

/** Below the ports the kernel gives out by itself, three per instance, and the next when somebody has one. */
const PORT_FIRST = 20_000
const PORT_TRIPLES = 3_333
const PORT_TRIES = 20
/** Next to those of the VMs (main.ts), above every real account. */
const GATE_UID = 1_610_612_735

export async function openNetwork(log: Log, settings: NetworkSettings): Promise<Network> {
  const { instance, poolSize, tapOwnerUid, stateDir, privateCidrs = [], upstreams, ...forHost } = settings
  for (const block of privateCidrs) parseCidr(block)
  const netd = new Netd(instance)
  netd.on('died', (how) => log.warn(how, 'netd died; the next request starts another'))
  let gate: Gate | undefined
  try {
    const opened = await openGate(log, netd, forHost, { instance, ...(upstreams === undefined ? {} : { upstreams }) })
    gate = opened.gate
    const { host, gatePorts } = opened
    for (const warning of host.warnings) log.warn(warning)
    const pool = new SlotPool({ netd, log }, { size: poolSize, mtu: host.mtu, tapOwnerUid })
    const kept = new KeptNetworks(stateDir)
    const slots = await Slots.open({ netd, gate, kept, pool, log }, { cidr: settings.cidr, privateCidrs })
    return {
      instance,
      netd,
      gate,
      slots,
      host,
      gatePorts,
      reap: async () => {
        await slots.restore()
        return (await netd.request('reapAll', { except: slots.taken })).released
      },
      close: async () => {
        await slots.close()
        await opened.gate.close()
        await netd.close()
      },
    }
  } catch (error) {
    await gate?.close()
    await netd.close()
    throw new Error('could not open the network', { cause: error })
  }
}

async function openGate(
  log: Log,
  netd: Netd,
  forHost: Omit<HostSettings, 'gate'>,
  forGate: { instance: string; upstreams?: Upstream[] },
): Promise<{ gate: Gate; host: HostNetwork; gatePorts: GatePorts }> {
  const { instance, ...rest } = forGate
  for (let attempt = 0; ; attempt++) {
    const first = PORT_FIRST + 3 * ((Number.parseInt(instance, 16) + attempt) % PORT_TRIPLES)
    const gatePorts = { dns: first, http: first + 1, tls: first + 2 }
    // First, because it gives the host the address the gate listens on.
    const host = await netd.request('setUpHost', { ...forHost, gate: gatePorts })
    try {
      const gate = await Gate.open(log, { address: HOST_ADDRESS, ports: gatePorts, uid: GATE_UID, ...rest })
      return { gate, host, gatePorts }
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'EADDRINUSE' || attempt >= PORT_TRIES) throw error
    }
  }
}
