/** Creates Debian root file systems with mmdebstrap, from the mirror of this machine. */
import { chmod, readdir, rm, symlink, writeFile } from 'node:fs/promises'
import path from 'node:path'
import { runCommandOrThrow } from '../run-command.ts'
import type { Build } from './build.ts'
import { findMirror, type Mirror, renderSources } from './mirror.ts'
import { type PackageFile, readPackageFiles, recordingOptions } from './package-files.ts'
import { runInBuild } from './run-in-build.ts'
import { TOOL_ENV } from './tools.ts'

/** A root directory, and the package files it was made of. */
export type MadeRoot = { root: string; packages: PackageFile[] }
export type DebianRoot = { suite: string; packages: readonly string[] }

const APT_OPTIONS = ['APT::Install-Recommends "false";', 'Acquire::Languages "none";']

/** Leaves out documentation and translations, but not licences. */
const DPKG_OPTIONS = [
  'path-exclude=/usr/share/man/*',
  'path-exclude=/usr/share/info/*',
  'path-exclude=/usr/share/locale/*',
  'path-exclude=/usr/share/doc/*',
  'path-include=/usr/share/doc/*/copyright',
]

export async function makeDebianRoot(build: Build, { suite, packages }: DebianRoot): Promise<MadeRoot> {
  const mirror = await findMirror()
  const root = path.join(build.folder, 'root')
  const args = [...recordingOptions(build.folder), ...mmdebstrapArgs(mirror, { suite, packages }, root)]
  await runInBuild(build, 'mmdebstrap', args, { env: mirror.env, what: `installing Debian ${suite}` })
  const files = await readPackageFiles(build.folder, root)
  await removeMachineIdentity(root)
  return { root, packages: files }
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

/** mmdebstrap copies resolver and host name of this machine. The guest agent sets those of the sandbox. */
async function removeMachineIdentity(root: string): Promise<void> {
  for (const file of ['etc/resolv.conf', 'etc/hostname', 'etc/machine-id', 'var/lib/dbus/machine-id']) {
    await rm(path.join(root, file), { force: true })
  }
  await writeFile(path.join(root, 'etc/hosts'), '127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n')
  await writeFile(path.join(root, 'etc/machine-id'), '') // An empty machine-id is set at boot.
  await writeFile(path.join(root, 'etc/resolv.conf'), '')
  await chmod(path.join(root, 'root'), 0o700)
}

/** The guest agent is the init, and there is no login on a console. */
const NOT_LINKED = ['init', 'linuxrc', 'sh', 'ash', 'getty', 'login', 'rpm', 'nuke', 'run-init']

/**
 * Adds the programs of busybox that minimal Debian lacks (wget, ps, vi, ping, nc and more), as links. A package that is
 * installed later replaces the link with its program.
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
