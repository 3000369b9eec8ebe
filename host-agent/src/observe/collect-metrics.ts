/** The metrics of this host at this moment: what was counted (metrics.ts) and the current values of everything else. */
import { withTimeout } from '@warren/kit/timeout'
import { type HostMetricFamily, type HostMetrics, HostVm } from '@warren/protocol'
import type { Deps } from '../deps.ts'
import type { EgressProxyCounts } from '../net/egress-proxy-protocol.ts'
import { gauge, renderSamples } from './instruments.ts'
import { renderS3ProxyCounts } from './s3-proxy-metrics.ts'

/** The proxy answers from memory. While it restarts its metrics are absent, and the others do not wait for it. */
const PROXY_LIMIT_MS = 300
const MIB = 1024 * 1024

export async function collectMetrics(deps: Deps, vms: { list(): HostVm[] }): Promise<HostMetrics> {
  const { operations, poolRequests, builds, buildSteps, processRequests, processExits } = deps.metrics
  return {
    families: [
      gauge('warren_host_vms', 'VMs on the host, by state', 'state', countStates(vms.list())),
      operations.collect(),
      poolRequests.collect(),
      gauge('warren_host_waiting_vmms', 'VMMs that wait for a create (pool) or a resume (standby)', 'place', {
        pool: deps.pool.size,
        standby: deps.standby.size,
      }),
      ...(await diskMetrics(deps)),
      builds.collect(),
      buildSteps.collect(),
      ...networkMetrics(deps),
      processRequests.collect(),
      processExits.collect(),
      ...(await proxyMetrics(deps)),
      ...(await s3ProxyMetrics(deps)),
      ...ownMetrics(),
    ],
  }
}

/** Every state, so that a graph of a state without VMs shows zero instead of a gap. */
function countStates(vms: HostVm[]): Record<string, number> {
  const counts = Object.fromEntries(HostVm.properties.state.enum.map((state) => [state, 0]))
  for (const { state } of vms) counts[state]!++
  return counts
}

function networkMetrics({ network }: Deps): HostMetricFamily[] {
  const ready = network.slots.readyCount
  const slots = { ready, taken: network.slots.taken.length - ready }
  return [gauge('warren_host_network_slots', 'Network slots that are ready or taken by a VMM', 'state', slots)]
}

async function diskMetrics({ volume, diskGuard }: Deps): Promise<HostMetricFamily[]> {
  const { total_mib, free_mib, floor_mib, sandboxes_mib } = await volume.report()
  const mib = { total: total_mib, free: free_mib, floor: floor_mib, sandboxes: sandboxes_mib }
  const bytes = Object.fromEntries(Object.entries(mib).map(([kind, value]) => [kind, value * MIB]))
  return [
    gauge(
      'warren_host_disk_bytes',
      'The volume of the data directory: its size, what is free, ' +
        'what must stay free, and what disks and saved states of sandboxes take',
      'kind',
      bytes,
    ),
    {
      name: 'warren_host_guests_waiting_for_disk',
      help: 'Guests that are stopped until the disk of the host has space',
      type: 'gauge',
      samples: [{ labels: {}, value: diskGuard.waiting() }],
    },
  ]
}

async function proxyMetrics({ network, log }: Deps): Promise<HostMetricFamily[]> {
  try {
    return renderProxyCounts(await withTimeout(PROXY_LIMIT_MS, network.egressProxy.counts(), 'counts of the proxy'))
  } catch (error) {
    log.debug({ err: error }, 'the metrics of the egress proxy are left out of a response')
    return []
  }
}

async function s3ProxyMetrics({ network: { s3Proxy }, log }: Deps): Promise<HostMetricFamily[]> {
  if (s3Proxy === undefined) return []
  try {
    return renderS3ProxyCounts(await withTimeout(PROXY_LIMIT_MS, s3Proxy.counts(), 'counts of the S3 proxy'))
  } catch (error) {
    log.debug({ err: error }, 'the metrics of the S3 proxy are left out of a response')
    return []
  }
}

function renderProxyCounts({ connections, open, refusals, dnsQueries }: EgressProxyCounts): HostMetricFamily[] {
  return [
    {
      name: 'warren_host_egress_connections_total',
      help: 'Connections of sandboxes to the egress proxy',
      type: 'counter',
      samples: renderSamples('protocol', connections),
    },
    gauge('warren_host_egress_open_connections', 'Open connections through the egress proxy', 'protocol', open),
    {
      name: 'warren_host_egress_refusals_total',
      help: 'Connections and DNS queries that the egress proxy refused, by reason',
      type: 'counter',
      samples: refusals.map(({ via, reason, count }) => ({ labels: { via, reason }, value: count })),
    },
    {
      name: 'warren_host_dns_queries_total',
      help: 'DNS queries of sandboxes that the egress proxy answered (local) or sent to a name server (forwarded)',
      type: 'counter',
      samples: renderSamples('answer', dnsQueries),
    },
  ]
}

function ownMetrics(): HostMetricFamily[] {
  const { user, system } = process.cpuUsage()
  return [
    {
      name: 'warren_host_agent_resident_memory_bytes',
      help: 'Resident memory of the host agent',
      type: 'gauge',
      samples: [{ labels: {}, value: process.memoryUsage.rss() }],
    },
    {
      name: 'warren_host_agent_cpu_seconds_total',
      help: 'Processor time of the host agent',
      type: 'counter',
      samples: renderSamples('mode', { user: user / 1e6, system: system / 1e6 }),
    },
  ]
}
