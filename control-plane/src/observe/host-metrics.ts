/**
 * The metrics of all hosts, in Prometheus' text format. Each sample has the label `host`, and `warren_host_up` says which
 * hosts answered. A host that does not answer in time is left out: a scrape is never slow because of it, and never fails.
 */
import type { HostMetricFamily, HostMetricSample } from '@warren/protocol'
import type { Deps } from '../deps.ts'
import { hostAddresses } from '../hosts/heartbeat.ts'

/** The values are in the memory of the host agent. Prometheus gives a scrape 10 s by default. */
export const HOST_METRICS_LIMIT_MS = 1_000

type AnsweredHost = { host: string; families: HostMetricFamily[] | undefined }

export async function renderHostMetrics(deps: Deps): Promise<string> {
  const hosts = await Promise.all(hostAddresses(deps).map((address) => askHost(deps, address)))
  const up: HostMetricFamily = {
    name: 'warren_host_up',
    help: 'Whether the host agent answered (1) or not (0)',
    type: 'gauge',
    samples: hosts.map(({ host, families }) => ({ labels: { host }, value: families ? 1 : 0 })),
  }
  return [up, ...mergeFamilies(hosts)].map(renderFamily).join('')
}

async function askHost(deps: Deps, address: string): Promise<AnsweredHost> {
  const host = deps.hosts.findId(address) ?? address
  try {
    const { families } = await deps.hosts.clientAt(address).getMetrics(HOST_METRICS_LIMIT_MS)
    return { host, families }
  } catch (error) {
    deps.log.debug({ err: error, host }, 'a host did not report its metrics')
    return { host, families: undefined }
  }
}

/** The text format requires that all samples of a family follow each other, whichever host they come from. */
function mergeFamilies(hosts: AnsweredHost[]): HostMetricFamily[] {
  const merged = new Map<string, HostMetricFamily>()
  for (const { host, families = [] } of hosts) {
    for (const family of families) {
      const samples = family.samples.map((sample) => ({ ...sample, labels: { host, ...sample.labels } }))
      const found = merged.get(family.name)
      if (found) found.samples.push(...samples)
      else merged.set(family.name, { ...family, samples })
    }
  }
  return [...merged.values()]
}

function renderFamily({ name, help, type, samples }: HostMetricFamily): string {
  const lines = samples.map((sample) => renderSample(name, sample))
  return [`# HELP ${name} ${escapeText(help)}`, `# TYPE ${name} ${type}`, ...lines, '', ''].join('\n')
}

function renderSample(name: string, { suffix, labels, value }: HostMetricSample): string {
  const pairs = Object.entries(labels).map(([label, text]) => `${label}="${escapeText(text).replaceAll('"', '\\"')}"`)
  return `${name}${suffix ?? ''}{${pairs.join(',')}} ${value}`
}

const escapeText = (text: string): string => text.replaceAll('\\', '\\\\').replaceAll('\n', '\\n')
