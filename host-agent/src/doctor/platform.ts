/** Checks the operating system, kernel, Node version and user. */

import { release } from 'node:os'
import { warrenCommand } from '@warren/kit/warren-command'
import type { Check, CheckResult, Machine } from './check.ts'
import { isAtLeast } from './version.ts'

/** The oldest kernel of a supported Debian; older ones are untested. */
const KERNEL_MINIMUM = '5.10'
/** The oldest release line that the tests run on. */
const NODE_MINIMUM = '24.0'

const ARCHITECTURES: Record<string, string> = { x64: 'x86-64', arm64: 'arm64' }

export const platformChecks = (machine: Machine): Check[] => [
  { name: 'system', needed: 'required', run: async () => checkSystem(process.platform, process.arch) },
  { name: 'kernel', needed: 'required', run: async () => checkKernel(release()) },
  { name: 'node', needed: 'required', run: async () => checkNode(process.versions.node) },
  { name: 'user', needed: 'recommended', run: async () => checkUser(machine) },
]

export function checkSystem(platform: string, arch: string): CheckResult {
  const architecture = ARCHITECTURES[arch]
  if (platform === 'linux' && architecture !== undefined) return { ok: true, detail: `Linux on ${architecture}` }
  return {
    ok: false,
    detail: `${platform} on ${arch}`,
    fix: 'use a machine or VM with Linux on x86-64 or arm64',
  }
}

export function checkKernel(version: string): CheckResult {
  const numbers = /^\d+\.\d+/.exec(version)?.[0] ?? '0'
  if (isAtLeast(numbers, KERNEL_MINIMUM)) return { ok: true, detail: version }
  return { ok: false, detail: `${version} is older than ${KERNEL_MINIMUM}`, fix: 'boot a newer kernel' }
}

export function checkNode(version: string): CheckResult {
  if (isAtLeast(version, NODE_MINIMUM)) return { ok: true, detail: version }
  return {
    ok: false,
    detail: `${version} is older than ${NODE_MINIMUM}`,
    fix: 'npm ci --ignore-scripts (installs the Node that npm run uses)',
  }
}

export function checkUser({ isRoot }: Pick<Machine, 'isRoot'>): CheckResult {
  if (isRoot) return { ok: true, detail: 'root' }
  return {
    ok: false,
    detail:
      'not root: only root can set up the network of sandboxes (namespaces, taps, nftables), limit their CPU and memory ' +
      '(cgroups), run each under its own uid, and install missing tools',
    fix: `sudo ${warrenCommand()} doctor, and sudo ${warrenCommand()} start`,
  }
}
