/** What the S3 proxy must know about this machine, read by the host agent: in its jail the proxy sees none of it. */
import { readFile } from 'node:fs/promises'
import { isIP } from 'node:net'
import { networkInterfaces } from 'node:os'
import { findInHosts } from '@warren/kit/outbound/resolve'
import type { Upstream } from '../net/egress-proxy-protocol.ts'
import { parseResolvConf, RESOLV_CONF } from '../net/resolv-conf.ts'
import type { S3ProxyMachine, S3ProxyMount } from './s3-proxy-protocol.ts'

const HOSTS = '/etc/hosts'

/** `upstreams`: the name servers that the proxy may ask. Those of the machine by default. */
export async function readS3ProxyMachine(upstreams?: readonly Upstream[]): Promise<S3ProxyMachine> {
  const servers = upstreams ?? parseResolvConf(await readText(RESOLV_CONF))
  return {
    nameServers: servers.map(({ address, port }) =>
      isIP(address) === 4 ? `${address}:${port}` : `[${address}]:${port}`,
    ),
    hosts: await readText(HOSTS),
    addresses: Object.values(networkInterfaces()).flatMap((list = []) => list.map(({ address }) => address)),
  }
}

/** A file that is being replaced is read the next time. */
const readText = (file: string): Promise<string> => readFile(file, 'utf8').catch(() => '')

type Endpoint = Pick<S3ProxyMount, 'endpoint' | 'allowLoopback'>

/** The ports of stores on loopback, which the firewall opens for the S3 proxy only while a mount needs them. */
export function listLoopbackPorts(mounts: Iterable<Endpoint>, { hosts }: Pick<S3ProxyMachine, 'hosts'>): number[] {
  const ports = new Set<number>()
  for (const { endpoint, allowLoopback } of mounts) {
    const url = URL.parse(endpoint)
    if (url !== null && allowLoopback && isLoopbackHost(url.hostname, hosts)) {
      ports.add(Number(url.port) || (url.protocol === 'https:' ? 443 : 80))
    }
  }
  return [...ports].sort((one, other) => one - other)
}

function isLoopbackHost(hostname: string, hosts: string): boolean {
  const name = hostname.replace(/^\[|\]$/g, '').replace(/\.$/, '')
  if (name === 'localhost' || name.endsWith('.localhost')) return true
  return (isIP(name) === 0 ? findInHosts(hosts, name) : [name]).some(isLoopbackAddress)
}

const isLoopbackAddress = (address: string): boolean => address.startsWith('127.') || address === '::1'
