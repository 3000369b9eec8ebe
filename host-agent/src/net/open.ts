/**
 * Opens the network of this host: netd, the host's table, the egress proxy. Afterwards the caller adopts the slots of
 * running VMs (`slots.adopt`), removes the others (`reap`) and fills the pool (`slots.start`).
 *
 * Closing stops netd and the egress proxy. Sandboxes keep their network, except for DNS and proxied connections.
 */
import type { Log } from '@warren/kit/log'
import { parseCidr } from './cidr.ts'
import { EgressProxy, type StartProxy } from './egress-proxy-client.ts'
import { checkProxyCode, startProxy } from './egress-proxy-jail.ts'
import type { EgressProxyPorts, Upstream } from './egress-proxy-protocol.ts'
import { HostGuard } from './guard-host.ts'
import { isSameMachine, type Machine, type MachineNetwork } from './machine.ts'
import { HOST_ADDRESS } from './names.ts'
import { Netd } from './netd-client.ts'
import type { HostNetwork, HostSettings, Released } from './netd-protocol.ts'
import { SlotPool } from './slot-pool.ts'
import { SlotStore } from './slot-store.ts'
import { Slots } from './slots.ts'

export type NetworkSettings = Omit<HostSettings, 'egressProxy' | 'proxyAccess'> & {
  instance: string
  /** The number of slots to keep ready. */
  poolSize: number
  tapOwnerUid: number
  /** The user of the egress proxy. */
  proxyUid: number
  /** Where the networks of slots in use are stored for the next host agent. Lost when the machine restarts. */
  stateDir: string
  /** Blocks inside closed ranges that a sandbox's rules may open. */
  privateCidrs?: readonly string[]
  /** Used instead of the host's name servers, for tests. */
  upstreams?: Upstream[]
}

export type Network = {
  instance: string
  netd: Netd
  egressProxy: EgressProxy
  slots: Slots
  host: HostNetwork
  guard: HostGuard
  egressProxyPorts: EgressProxyPorts
  /** For an API whose port the system chose: opens it to sandboxes and closes it to the networks around this machine. */
  openApiPort: (port: number) => Promise<void>
  /**
   * Releases every slot that is neither adopted, claimed nor in the pool. The programs of dead VMs must have exited
   * before.
   */
  reap: () => Promise<Released[]>
  close: () => Promise<void>
}

/** Three ports per instance, below the kernel's ephemeral ports. When one is taken, the next three are tried. */
const PORT_FIRST = 20_000
const PORT_TRIPLES = 3_333
const PORT_ATTEMPTS_MAX = 20

export async function openNetwork(log: Log, settings: NetworkSettings): Promise<Network> {
  const { instance, poolSize, tapOwnerUid, stateDir, proxyUid, privateCidrs = [], upstreams, ...others } = settings
  for (const block of privateCidrs) parseCidr(block)
  const proxyAccess = { uid: proxyUid, privateCidrs, ...(upstreams && { upstreams }) }
  const hostSettings = { ...others, proxyAccess }
  const netd = new Netd(instance)
  netd.on('died', (exit) => log.warn(exit, 'netd died; the next request starts another one'))
  let openedProxy: EgressProxy | undefined
  try {
    checkProxyCode()
    const { egressProxy, host, egressProxyPorts } = await openEgressProxy(log, netd, instance, hostSettings)
    openedProxy = egressProxy
    for (const warning of host.warnings) log.warn(warning)
    const { packetsPerSecond } = settings.limits
    const pool = new SlotPool({ netd, log }, { size: poolSize, mtu: host.mtu, tapOwnerUid, packetsPerSecond })
    const store = new SlotStore(stateDir)
    let { api } = settings
    const describeMachine = (found: MachineNetwork): Machine => ({
      ...found,
      api,
      dnsPort: egressProxyPorts.dns,
      dnsPerSecond: settings.limits.dnsPerSecond,
    })
    let machine = describeMachine(host.machine)
    const policySettings = { cidr: settings.cidr, privateCidrs, machine }
    const slots = await Slots.open({ netd, egressProxy, store, pool, log }, policySettings)
    const currentSettings = () => ({ ...hostSettings, egressProxy: egressProxyPorts, api })
    const changeMachine = async (network: MachineNetwork) => {
      const next = describeMachine(network)
      if (isSameMachine(machine, next)) return
      machine = next
      await slots.changeMachine(next)
    }
    const guard = new HostGuard({
      ...{ netd, log, settings: currentSettings },
      onCheck: async (found) => {
        await changeMachine(found.machine)
        await egressProxy.setUpstreams(found.upstreams)
      },
    })
    return {
      instance,
      netd,
      egressProxy,
      slots,
      host,
      guard,
      egressProxyPorts,
      openApiPort: async (port) => {
        api = { ...api, port }
        const { machine: network } = await netd.request('setUpHost', currentSettings())
        await changeMachine(network)
      },
      reap: async () => {
        await slots.restore()
        return (await netd.request('reapAll', { except: slots.taken })).released
      },
      close: async () => {
        await guard.close()
        await slots.close()
        await egressProxy.close()
        await netd.close()
      },
    }
  } catch (error) {
    await openedProxy?.close()
    await netd.close()
    throw new Error('failed to open the network', { cause: error })
  }
}

/** The host is set up first, because that adds the address on which the egress proxy listens. */
async function openEgressProxy(
  log: Log,
  netd: Netd,
  instance: string,
  hostSettings: Omit<HostSettings, 'egressProxy'>,
): Promise<Pick<Network, 'egressProxy' | 'host' | 'egressProxyPorts'>> {
  const start: StartProxy = (proxySettings) => startProxy(hostSettings.proxyAccess.uid, proxySettings)
  for (let attempt = 0; ; attempt++) {
    const first = PORT_FIRST + 3 * ((Number.parseInt(instance, 16) + attempt) % PORT_TRIPLES)
    const ports = { dns: first, http: first + 1, tls: first + 2 }
    const host = await netd.request('setUpHost', { ...hostSettings, egressProxy: ports })
    try {
      const egressProxy = await EgressProxy.open(log, start, {
        ...{ address: HOST_ADDRESS, ports, upstreams: host.upstreams },
        dnsPerSecond: hostSettings.limits.dnsPerSecond,
      })
      return { egressProxy, host, egressProxyPorts: ports }
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'EADDRINUSE' || attempt >= PORT_ATTEMPTS_MAX) throw error
    }
  }
}
