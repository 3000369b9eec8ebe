/**
 * What the kernel must offer for the network of a sandbox (platform 6), and fuse.
 *
 * Each part is really used, in a network namespace that is gone with the command. Where the tool for that is missing,
 * the configuration of the kernel has to do.
 */
import { access, constants, readFile } from 'node:fs/promises'
import { runCommand } from '../run-command.ts'
import type { Check, CheckResult, Machine } from './check.ts'
import { asRoot, findTool, toolEnv } from './find-tool.ts'
import { findKernelPart, type KernelPart } from './kernel-config.ts'

export type Part = {
  name: string
  /** The kernel option without CONFIG_, and the module it may be built as. */
  option: string
  module: string
  /** What succeeds only where the part works. */
  attempt: { tool: string; args: readonly string[]; input?: string }
}

/** One of each kind of thing in the tables of platform 6.2 and 6.3. */
const NFT_TABLE = `table ip warren_doctor {
  counter out { }
  quota egress { over 5368709120 bytes }
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
  chain cut {
    type filter hook ingress device "lo" priority filter;
    ether type ip fwd to "lo"
  }
}
`

export const PARTS: readonly Part[] = [
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
  ...PARTS.map((part): Check => {
    // Only root runs sandboxes; and what cannot be tried keeps nobody from starting.
    const needed = machine.isRoot && missingTool(machine, part) === undefined ? 'required' : 'recommended'
    return { name: part.name, needed, run: (signal) => checkPart(machine, part, signal) }
  }),
  { name: 'ip_forward', needed: 'recommended', run: checkForwarding },
  { name: 'fuse', needed: 'recommended', run: () => checkFuse(machine) },
]

export async function checkPart(machine: Machine, part: Part, signal: AbortSignal): Promise<CheckResult> {
  const { tool, args, input } = part.attempt
  const missing = missingTool(machine, part)
  if (missing !== undefined) return judgeUntried(machine, part, await findKernelPart(part.option, part.module), missing)

  // An ordinary user becomes root of a user namespace, where the kernel allows that.
  const namespaces = machine.isRoot ? ['--net'] : ['--user', '--map-root-user', '--net']
  const tried = await runCommand('unshare', [...namespaces, tool, ...args], { input, env: toolEnv(machine), signal })
  if (tried.exitCode === 0) return { ok: true, detail: 'works' }
  const detail = `refused: ${tried.stderr || `exit code ${tried.exitCode}`}`
  if (!machine.isRoot) return { ok: false, detail, fix: 'sudo npm run doctor: root may do more' }
  return { ok: false, detail, fix: mend(machine, part, await findKernelPart(part.option, part.module)) }
}

export function judgeUntried(machine: Machine, part: Part, found: KernelPart, missing: string): CheckResult {
  const note = `not tried, for want of ${missing}: the configuration of the kernel says so`
  if (found === 'built in' || found === 'a module') return { ok: true, detail: found, note }
  const detail = `${found} by the configuration of the kernel (not tried, for want of ${missing})`
  return { ok: false, detail, fix: mend(machine, part, found) }
}

function mend(machine: Machine, { option, module }: Part, found: KernelPart): string {
  if (found === 'absent') return `boot a kernel with CONFIG_${option}`
  if (found === 'built in') return `allow it: the kernel has CONFIG_${option}, so a container or policy forbids it`
  return `${asRoot(machine)}modprobe ${module}`
}

const missingTool = (machine: Machine, part: Part): string | undefined =>
  ['unshare', part.attempt.tool].find((tool) => findTool(machine, tool) === undefined)

/** Only to know: the host agent turns it on with the first sandbox that has a network. */
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
    const fix = machine.isRoot ? 'mknod -m 666 /dev/fuse c 10 229' : 'sudo npm run doctor: root may open it'
    return { ok: false, detail: `/dev/fuse cannot be opened (${why})`, fix }
  }
}
