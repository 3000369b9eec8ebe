/**
 * Opens the network of this host: netd, the host's table and the egress proxy. The S3 proxy starts with the first mount. Afterwards the caller adopts the slots of
 * running VMs (`slots.adopt`), removes the others (`reap`) and fills the pool (`slots.start`).
 *
 * Closing stops netd and the proxies. Sandboxes keep their network, except for DNS, proxied connections and disks.
 */
import { once } from 'node:events'
import { createServer } from 'node:net'
import type { Log } from '@warren/kit/log'
import { S3Proxy } from '../disks/s3-proxy-client.ts'
import { checkS3ProxyCode, startS3Proxy } from '../disks/s3-proxy-jail.ts'
import { readS3ProxyMachine } from '../disks/s3-proxy-machine.ts'
import { waitForAll } from '../wait-for-all.ts'
import { parseCidr } from './cidr.ts'
import { EgressProxy, type StartProxy } from './egress-proxy-client.ts'
import { checkProxyCode, startProxy } from './egress-proxy-jail.ts'
import type { EgressProxyPorts, Upstream } from './egress-proxy-protocol.ts'
import { followHost } from './follow-host.ts'
import { HostGuard } from './guard-host.ts'
import { isSameMachine, type Machine, type MachineNetwork } from './machine.ts'
import { HOST_ADDRESS } from './names.ts'
import { Netd } from './netd-client.ts'
import type { HostNetwork, HostSettings, Released } from './netd-protocol.ts'
import { SlotPool } from './slot-pool.ts'
import { SlotStore } from './slot-store.ts'
import { Slots } from './slots.ts'

export type NetworkSettings = Omit<HostSettings, 'egressProxy' | 's3Port' | 'proxyAccess' | 's3ProxyAccess'> & {
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
  /** With it, guests reach the S3 proxy. `privateCidrs`: blocks of private addresses in which stores may be. */
  s3Proxy?: { uid: number; privateCidrs: readonly string[] }
}

export type Network = {
  instance: string
  netd: Netd
  egressProxy: EgressProxy
  /** Undefined if it is switched off. */
  s3Proxy: S3Proxy | undefined
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

/** Four ports per instance, below the kernel's ephemeral ports. When one is taken, the next four are tried. */
const PORTS_FIRST = 20_000
const PORTS_EACH = 4
const PORTS_CHOICES = 2_500
const PORT_ATTEMPTS_MAX = 20

export async function openNetwork(log: Log, settings: NetworkSettings): Promise<Network> {
  const {
    instance,
    poolSize,
    tapOwnerUid,
    stateDir,
    proxyUid,
    privateCidrs = [],
    upstreams,
    s3Proxy: s3,
    ...others
  } = settings
  for (const block of privateCidrs) parseCidr(block)
  const proxyAccess = { uid: proxyUid, privateCidrs, ...(upstreams && { upstreams }) }
  const s3ProxyAccess = s3 && { ...s3, loopbackPorts: [] as readonly number[] }
  const hostSettings = { ...others, proxyAccess, ...(s3ProxyAccess && { s3ProxyAccess }) }
  const netd = new Netd(instance)
  netd.on('died', (exit) => log.warn(exit, 'netd died; the next request starts another one'))
  let opened: OpenedProxy | undefined
  try {
    checkProxyCode()
    if (s3) checkS3ProxyCode()
    opened = await openEgressProxy(log, netd, instance, hostSettings)
    const { egressProxy, host, egressProxyPorts, s3Port } = opened
    for (const warning of host.warnings) log.warn(warning)
    const { packetsPerSecond } = settings.limits
    const pool = new SlotPool({ netd, log }, { size: poolSize, mtu: host.mtu, tapOwnerUid, packetsPerSecond })
    const store = new SlotStore(stateDir)
    let { api } = settings
    const describeMachine = (found: MachineNetwork): Machine => ({
      ...found,
      api,
      dnsPort: egressProxyPorts.dns,
      s3Port,
      dnsPerSecond: settings.limits.dnsPerSecond,
    })
    let machine = describeMachine(host.machine)
    const policySettings = { cidr: settings.cidr, privateCidrs, machine }
    const slots = await Slots.open({ netd, egressProxy, store, pool, log }, policySettings)
    const currentSettings = () => ({ ...hostSettings, egressProxy: egressProxyPorts, s3Port, api })
    let found = host.upstreams
    const s3Proxy =
      s3ProxyAccess &&
      new S3Proxy(
        {
          log,
          start: (settings) => startS3Proxy(s3ProxyAccess.uid, settings),
          readMachine: () => readS3ProxyMachine(found),
          openLoopback: async (loopbackPorts) => {
            hostSettings.s3ProxyAccess = { ...s3ProxyAccess, loopbackPorts }
            await netd.request('checkHost', currentSettings())
          },
        },
        { address: HOST_ADDRESS, port: s3Port, privateCidrs: [...s3ProxyAccess.privateCidrs] },
      )
    const changeMachine = async (network: MachineNetwork) => {
      const next = describeMachine(network)
      if (isSameMachine(machine, next)) return
      machine = next
      await slots.changeMachine(next)
    }
    const guard = new HostGuard({
      ...{ netd, log, settings: currentSettings },
      onCheck: async (check) => {
        found = check.upstreams
        await followHost({ log, changeMachine, egressProxy, s3Proxy }, check)
      },
    })
    return {
      instance,
      netd,
      egressProxy,
      s3Proxy,
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
        await waitForAll([egressProxy.close(), s3Proxy?.close()])
        await netd.close()
      },
    }
  } catch (error) {
    await opened?.egressProxy.close()
    await netd.close()
    throw new Error('failed to open the network', { cause: error })
  }
}

type OpenedProxy = Pick<Network, 'egressProxy' | 'host' | 'egressProxyPorts'> & { s3Port: number }

/** The host is set up first, because that adds the address on which the proxies listen. */
async function openEgressProxy(
  log: Log,
  netd: Netd,
  instance: string,
  hostSettings: Omit<HostSettings, 'egressProxy' | 's3Port'>,
): Promise<OpenedProxy> {
  const start: StartProxy = (proxySettings) => startProxy(hostSettings.proxyAccess.uid, proxySettings)
  for (let attempt = 0; ; attempt++) {
    const first = PORTS_FIRST + PORTS_EACH * ((Number.parseInt(instance, 16) + attempt) % PORTS_CHOICES)
    const ports = { dns: first, http: first + 1, tls: first + 2 }
    const s3Port = hostSettings.s3ProxyAccess ? first + 3 : 0
    const host = await netd.request('setUpHost', { ...hostSettings, egressProxy: ports, s3Port })
    const { dnsPerSecond } = hostSettings.limits
    const egressSettings = { address: HOST_ADDRESS, ports, upstreams: host.upstreams, dnsPerSecond }
    try {
      if (s3Port !== 0) await checkPort(s3Port)
      return { egressProxy: await EgressProxy.open(log, start, egressSettings), host, egressProxyPorts: ports, s3Port }
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'EADDRINUSE' || attempt >= PORT_ATTEMPTS_MAX) throw error
    }
  }
}

/** The S3 proxy starts later, and its port must not be that of another program. */
async function checkPort(port: number): Promise<void> {
  const server = createServer().listen({ host: HOST_ADDRESS, port })
  await once(server, 'listening')
  server.close()
  await once(server, 'close')
}
