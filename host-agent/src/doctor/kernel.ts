/**
 * Checks the kernel features that the network of a sandbox needs, and fuse.
 *
 * Each feature is tried in a temporary network namespace. If the tool for that is missing, the kernel configuration is
 * read instead.
 */

import { access, constants, readFile } from 'node:fs/promises'
import { warrenCommand } from '@warren/kit/warren-command'
import { runCommand } from '../run-command.ts'
import type { Check, CheckResult, Machine } from './check.ts'
import { asRoot, findTool, toolEnv } from './find-tool.ts'
import { findKernelFeature, type KernelFeature } from './kernel-config.ts'

export type Feature = {
  name: string
  /** The kernel option without CONFIG_, and the module it may be built as. */
  option: string
  module: string
  /** A command that succeeds only if the feature works. */
  attempt: { tool: string; args: readonly string[]; input?: string }
}

/** Uses one of each nftables construct that the host agent uses. */
const NFT_TABLE = `table ip warren_doctor {
  counter out { }
  quota egress { over 5368709120 bytes }
  set rates { type ipv4_addr; size 16; flags dynamic,timeout; timeout 1m; }
  set counts { type ipv4_addr; size 16; flags dynamic; }
  set pairs { type ipv4_addr . ipv4_addr; flags interval; }
  chain prer {
    type filter hook prerouting priority raw;
    iifname "v0" ip daddr 100.64.0.1 notrack ip daddr set 172.30.0.2
  }
  chain forw {
    type filter hook forward priority 0; policy drop;
    iifname "tap0" quota name "egress" drop
    iifname "tap0" counter name "out" accept
    ip saddr . ip daddr @pairs accept
    ct state established,related accept
    ct state new update @rates { ip saddr limit rate over 200/second burst 1000 packets } drop
    ct state new add @counts { ip saddr ct count over 4096 } drop
  }
  chain natpre {
    type nat hook prerouting priority dstnat;
    tcp dport 80 redirect to :18080
  }
  chain natpost {
    type nat hook postrouting priority srcnat;
    oifname "up0" masquerade
  }
}
table netdev warren_doctor {
  chain segment {
    type filter hook ingress device "lo" priority filter;
    ether type ip fwd to "lo"
  }
}
`

export const FEATURES: readonly Feature[] = [
  { name: 'network namespaces', option: 'NET_NS', module: 'net_namespace', attempt: { tool: 'true', args: [] } },
  {
    name: 'veth',
    option: 'VETH',
    module: 'veth',
    attempt: { tool: 'ip', args: ['link', 'add', 'w0', 'type', 'veth', 'peer', 'name', 'w1'] },
  },
  {
    name: 'tun',
    option: 'TUN',
    module: 'tun',
    attempt: { tool: 'ip', args: ['tuntap', 'add', 'dev', 'w0', 'mode', 'tap'] },
  },
  {
    name: 'nf_tables',
    option: 'NF_TABLES',
    module: 'nf_tables',
    attempt: { tool: 'nft', args: ['-f', '-'], input: NFT_TABLE },
  },
]

export const kernelChecks = (machine: Machine): Check[] => [
  ...FEATURES.map((feature): Check => {
    // Only root runs sandboxes, and a feature that cannot be tried must not prevent the start.
    const needed = machine.isRoot && missingTool(machine, feature) === undefined ? 'required' : 'recommended'
    return { name: feature.name, needed, run: (signal) => checkFeature(machine, feature, signal) }
  }),
  { name: 'ip_forward', needed: 'recommended', run: checkForwarding },
  { name: 'fuse', needed: 'recommended', run: () => checkFuse(machine) },
]

export async function checkFeature(machine: Machine, feature: Feature, signal: AbortSignal): Promise<CheckResult> {
  const { tool, args, input } = feature.attempt
  const missing = missingTool(machine, feature)
  if (missing !== undefined)
    return checkByConfig(machine, feature, await findKernelFeature(feature.option, feature.module), missing)

  // An ordinary user needs a user namespace to create a network namespace, if the kernel allows that.
  const namespaces = machine.isRoot ? ['--net'] : ['--user', '--map-root-user', '--net']
  const result = await runCommand('unshare', [...namespaces, tool, ...args], { input, env: toolEnv(machine), signal })
  if (result.exitCode === 0) return { ok: true, detail: 'works' }
  const detail = `refused: ${result.stderr || `exit code ${result.exitCode}`}`
  if (!machine.isRoot) return { ok: false, detail, fix: `sudo ${warrenCommand()} doctor (root has more rights)` }
  return { ok: false, detail, fix: getFix(machine, feature, await findKernelFeature(feature.option, feature.module)) }
}

export function checkByConfig(machine: Machine, feature: Feature, found: KernelFeature, missing: string): CheckResult {
  const note = `according to the kernel configuration; not tried, because ${missing} is missing`
  if (found === 'built in' || found === 'a module') return { ok: true, detail: found, note }
  const detail = `${found} according to the kernel configuration (not tried, because ${missing} is missing)`
  return { ok: false, detail, fix: getFix(machine, feature, found) }
}

function getFix(machine: Machine, { option, module }: Feature, found: KernelFeature): string {
  if (found === 'absent') return `boot a kernel with CONFIG_${option}`
  if (found === 'built in') return `the kernel has CONFIG_${option}; allow its use in the container or security policy`
  return `${asRoot(machine)}modprobe ${module}`
}

const missingTool = (machine: Machine, feature: Feature): string | undefined =>
  ['unshare', feature.attempt.tool].find((tool) => findTool(machine, tool) === undefined)

/** For information only: the host agent turns it on with the first sandbox that has a network. */
async function checkForwarding(): Promise<CheckResult> {
  const on = (await readFile('/proc/sys/net/ipv4/ip_forward', 'utf8')).trim() === '1'
  return { ok: true, detail: on ? 'on' : 'off, turned on when sandboxes need it' }
}

async function checkFuse(machine: Machine): Promise<CheckResult> {
  const filesystems = await readFile('/proc/filesystems', 'utf8')
  if (!/\bfuse$/m.test(filesystems)) {
    return { ok: false, detail: 'not in /proc/filesystems', fix: `${asRoot(machine)}modprobe fuse` }
  }
  try {
    await access('/dev/fuse', constants.R_OK | constants.W_OK)
    return { ok: true, detail: '/dev/fuse' }
  } catch (error) {
    const why = (error as NodeJS.ErrnoException).code ?? error
    const fix = machine.isRoot ? 'mknod -m 666 /dev/fuse c 10 229' : `sudo ${warrenCommand()} doctor (root can open it)`
    return { ok: false, detail: `/dev/fuse cannot be opened (${why})`, fix }
  }
}
