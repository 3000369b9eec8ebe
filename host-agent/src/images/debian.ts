/** Root directories of Debian, made by mmdebstrap from the machine's own mirror. */
import { chmod, readdir, rm, symlink, writeFile } from 'node:fs/promises'
import path from 'node:path'
import { runCommandOrThrow } from '../run-command.ts'
import type { Build } from './build.ts'
import { runInBuild } from './command.ts'
import { findMirror, type Mirror, renderSources } from './mirror.ts'
import { TOOL_ENV } from './tools.ts'

export type DebianRoot = { suite: string; packages: readonly string[] }

const APT_OPTIONS = ['APT::Install-Recommends "false";', 'Acquire::Languages "none";']

/** Nobody reads them in a sandbox; licences stay. */
const DPKG_OPTIONS = [
  'path-exclude=/usr/share/man/*',
  'path-exclude=/usr/share/info/*',
  'path-exclude=/usr/share/locale/*',
  'path-exclude=/usr/share/doc/*',
  'path-include=/usr/share/doc/*/copyright',
]

export async function makeDebianRoot(build: Build, { suite, packages }: DebianRoot): Promise<string> {
  const mirror = await findMirror()
  const root = path.join(build.folder, 'root')
  const args = mmdebstrapArgs(mirror, { suite, packages }, root)
  await runInBuild(build, 'mmdebstrap', args, { env: mirror.env, what: `installing Debian ${suite}` })
  await forgetMachine(root)
  return root
}

export function mmdebstrapArgs(mirror: Mirror, { suite, packages }: DebianRoot, root: string): string[] {
  const aptOptions = [...APT_OPTIONS, ...mirror.aptOptions]
  return [
    '--verbose',
    '--mode=root',
    '--format=directory',
    '--architectures=amd64',
    '--variant=minbase',
    ...(packages.length > 0 ? [`--include=${packages.join(',')}`] : []),
    ...aptOptions.map((option) => `--aptopt=${option}`),
    ...DPKG_OPTIONS.map((option) => `--dpkgopt=${option}`),
    ...(mirror.keyring ? [`--keyring=${mirror.keyring}`] : []),
    suite,
    root,
    ...renderSources(mirror, suite),
  ]
}

/** mmdebstrap lends the root this machine's resolver and name; a sandbox gets its own from the agent. */
async function forgetMachine(root: string): Promise<void> {
  for (const file of ['etc/resolv.conf', 'etc/hostname', 'etc/machine-id', 'var/lib/dbus/machine-id']) {
    await rm(path.join(root, file), { force: true })
  }
  await writeFile(path.join(root, 'etc/hosts'), '127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n')
  await writeFile(path.join(root, 'etc/machine-id'), '') // empty means: to be set at boot
  await writeFile(path.join(root, 'etc/resolv.conf'), '')
  await chmod(path.join(root, 'root'), 0o700)
}

/** The agent is the init, and nobody logs in on a console. */
const NOT_LINKED = ['init', 'linuxrc', 'sh', 'ash', 'getty', 'login', 'rpm', 'nuke', 'run-init']

/**
 * What Debian lacks busybox has: wget, ps, vi, ping, nc and more, as links where no file is. A package installed later
 * replaces the link with its own program.
 */
export async function linkBusybox(build: Build, root: string): Promise<void> {
  const { stdout } = await runCommandOrThrow('chroot', [root, '/usr/bin/busybox', '--list-full'], {
    env: TOOL_ENV,
    signal: build.signal,
  })
  const folders = ['usr/bin', 'usr/sbin']
  const taken = new Set((await Promise.all(folders.map((folder) => readdir(path.join(root, folder))))).flat())
  for (const file of stdout.split('\n').filter((line) => line !== '')) {
    const name = path.basename(file)
    if (taken.has(name) || NOT_LINKED.includes(name)) continue
    const folder = path.dirname(file).endsWith('sbin') ? 'usr/sbin' : 'usr/bin'
    await symlink('/usr/bin/busybox', path.join(root, folder, name))
  }
}
