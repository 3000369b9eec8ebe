/** Checks the programs of the host that Warren runs. Each comes with a Debian package. */
import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { runCommand } from '../run-command.ts'
import type { Check, CheckResult, Machine } from './check.ts'
import { asRoot, findTool, installCommand, toolEnv } from './find-tool.ts'
import { isAtLeast } from './version.ts'

const GUEST_AGENT = join(import.meta.dirname, '../../../guest-agent/target/warren/guest-agent')

export type Tool = {
  name: string
  debianPackage: string
  /** Needed to run any sandbox. The other tools build images and the guest agent. */
  inEverySandbox: boolean
  /** Arguments that print the version, which is the first number with a dot. `versionExitCode` is 0 by default. */
  versionArgs: readonly string[]
  versionExitCode?: number
  minimum?: string
  /** A feature that the output of `args` must list; the first group of `pattern` is shown. */
  offers?: { args: readonly string[]; pattern: RegExp; what: string }
  /** Where the set-up looks if the first one on the PATH does not work. */
  otherwise?: string | undefined
  /** What a tool is needed for may exist already: returns the reason why it is not needed, or undefined. */
  notNeeded?: (() => string | undefined) | undefined
  /** For tools whose fix is not only to install the package. */
  fix?: (machine: Machine) => string
}

export const TOOLS: readonly Tool[] = [
  {
    name: 'qemu-system-x86_64',
    debianPackage: 'qemu-system-x86',
    inEverySandbox: true,
    versionArgs: ['--version'],
    minimum: '7.2', // The oldest version that is tested.
    offers: { args: ['-machine', 'help'], pattern: /^q35 .*\(alias of (pc-q35-[\d.]+)\)/m, what: 'q35' },
  },
  { name: 'qemu-img', debianPackage: 'qemu-utils', inEverySandbox: true, versionArgs: ['--version'] },
  { name: 'mke2fs', debianPackage: 'e2fsprogs', inEverySandbox: true, versionArgs: ['-V'] },
  // Without arguments it prints its version and usage, and fails.
  { name: 'resize2fs', debianPackage: 'e2fsprogs', inEverySandbox: true, versionArgs: [], versionExitCode: 1 },
  { name: 'ip', debianPackage: 'iproute2', inEverySandbox: true, versionArgs: ['-V'] },
  { name: 'nft', debianPackage: 'nftables', inEverySandbox: true, versionArgs: ['--version'] },
  { name: 'mmdebstrap', debianPackage: 'mmdebstrap', inEverySandbox: false, versionArgs: ['--version'] },
  { name: 'skopeo', debianPackage: 'skopeo', inEverySandbox: false, versionArgs: ['--version'] },
  { name: 'umoci', debianPackage: 'umoci', inEverySandbox: false, versionArgs: ['--version'] },
  {
    name: 'cargo',
    debianPackage: 'cargo',
    inEverySandbox: false,
    versionArgs: ['--version'],
    minimum: '1.85', // The first version with edition 2024.
    // As in tools/machine.sh: a cargo on the PATH may be a shim without a toolchain.
    otherwise: '/usr/bin/cargo',
    notNeeded: () => (existsSync(GUEST_AGENT) ? 'the guest agent is built' : undefined),
    fix: installCargo,
  },
]

/** As root on Debian, set-up installs missing tools, so there none is required. */
export function toolChecks(machine: Machine): Check[] {
  const startInstalls = machine.isRoot && findTool(machine, 'apt-get') !== undefined
  return TOOLS.map((tool) => ({
    name: tool.name,
    needed: tool.inEverySandbox && !startInstalls ? 'required' : 'recommended',
    run: (signal) => checkTool(machine, tool, signal),
  }))
}

export async function checkTool(machine: Machine, tool: Tool, signal: AbortSignal): Promise<CheckResult> {
  const fix = tool.fix?.(machine) ?? installCommand(machine, tool.debianPackage)
  const first = findTool(machine, tool.name)
  const result = await checkPath(machine, tool, first, fix, signal)
  if (result.ok) return result
  const { otherwise } = tool
  if (otherwise !== undefined && otherwise !== first && existsSync(otherwise)) {
    const other = await checkPath(machine, tool, otherwise, fix, signal)
    if (other.ok) return { ok: true, detail: `${other.detail} in ${otherwise}` }
  }
  const reason = tool.notNeeded?.()
  return reason === undefined ? result : { ok: true, detail: `not needed: ${reason}` }
}

async function checkPath(
  machine: Machine,
  tool: Tool,
  path: string | undefined,
  fix: string,
  signal: AbortSignal,
): Promise<CheckResult> {
  if (path === undefined) return { ok: false, detail: 'not found', fix }
  const env = toolEnv(machine)
  const { stdout, stderr, exitCode } = await runCommand(path, tool.versionArgs, { env, signal })
  const version = /\d+(\.\d+)+/.exec(stdout + stderr)?.[0]
  if (exitCode !== (tool.versionExitCode ?? 0) || version === undefined) {
    return { ok: false, detail: `failed to run: ${stderr || `exit code ${exitCode}`}`, fix }
  }
  if (tool.minimum !== undefined && !isAtLeast(version, tool.minimum)) {
    return { ok: false, detail: `${version} is older than ${tool.minimum}`, fix }
  }
  if (tool.offers === undefined) return { ok: true, detail: version }

  const list = await runCommand(path, tool.offers.args, { env, signal })
  const offered = tool.offers.pattern.exec(list.stdout)?.[1]
  if (offered === undefined) return { ok: false, detail: `${version} does not offer ${tool.offers.what}`, fix }
  return { ok: true, detail: `${version} with ${offered}` }
}

/** Debian 12 has a current Rust as cargo-web and an old one as cargo; in Debian 13 cargo is current. */
function installCargo(machine: Machine): string {
  if (findTool(machine, 'apt-get') === undefined) return installCommand(machine, 'cargo')
  const sudo = asRoot(machine)
  return `${sudo}apt-get install -y cargo-web || ${sudo}apt-get install -y cargo`
}
