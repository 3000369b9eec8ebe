/**
 * The guest's kernel: the distribution's cloud kernel, from the suite that fits this machine's QEMU.
 *
 * QEMU 7.2 without KVM panics one boot in four with 6.12, and never did with 6.1 (platform.md 11.1).
 */
import { chmod, copyFile, mkdir, readFile, writeFile } from 'node:fs/promises'
import path from 'node:path'
import { isAtLeast } from '../doctor/version.ts'
import { runCommandOrThrow } from '../run-command.ts'
import { type Build, type BuildOptions, buildOnce, findNewer, place } from './build.ts'
import { listDependencies, openApt, unpackPackage } from './debian-package.ts'
import { hashFolder } from './hash.ts'
import { folderOf, KERNEL_FILE, MANIFEST_FILE, pathOf, type Store } from './layout.ts'
import { findMirror } from './mirror.ts'
import { BOOT_MODULES, findModules, LATER_MODULES, orderModules, readNeeds } from './modules.ts'
import { findNamed, linkName, withContents } from './names.ts'
import { requireTools, TOOL_ENV } from './tools.ts'

export type Kernel = {
  /** As `uname -r` tells it. */
  version: string
  vmlinuz: string
  digest: string
  /** Paths of the modules to load at boot, each after those it needs. */
  bootModules: string[]
  /** Of those that may be loaded later. */
  laterModules: string[]
}

type KernelManifest = { version: string; boot_modules: string[]; later_modules: string[] }

const META_PACKAGE = 'linux-image-cloud-amd64'

export async function ensureKernel(store: Store, options: BuildOptions = {}): Promise<Kernel> {
  const suite = suiteForQemu(await readQemuVersion())
  return buildOnce(
    store,
    nameOf(suite),
    options,
    () => findKernel(store, suite),
    (build) => buildKernel(store, build, suite),
  )
}

/** The newest of the suite. Whatever was booted with another is booted anew (bases/base.ts). */
export async function rebuildKernel(store: Store, options: BuildOptions = {}): Promise<Kernel> {
  const suite = suiteForQemu(await readQemuVersion())
  const find = await findNewer(() => findKernel(store, suite))
  return buildOnce(store, nameOf(suite), options, find, (build) => buildKernel(store, build, suite))
}

const nameOf = (suite: string): string => `kernel-${suite}`

export const suiteForQemu = (version: string): 'bookworm' | 'trixie' =>
  isAtLeast(version, '8') ? 'trixie' : 'bookworm'

async function readQemuVersion(): Promise<string> {
  requireTools('qemu-system-x86_64')
  const { stdout } = await runCommandOrThrow('qemu-system-x86_64', ['--version'], { env: TOOL_ENV })
  const version = /version (\d+(\.\d+)+)/.exec(stdout)?.[1]
  if (version === undefined) throw new Error(`qemu-system-x86_64 tells no version: ${stdout.slice(0, 200)}`)
  return version
}

async function findKernel(store: Store, suite: string): Promise<Kernel | undefined> {
  const digest = await findNamed(store, 'kernels', nameOf(suite))
  return digest === undefined ? undefined : readKernel(store, digest)
}

async function readKernel(store: Store, digest: string): Promise<Kernel> {
  const folder = pathOf(store, 'kernels', folderOf(digest))
  const manifest: KernelManifest = JSON.parse(await readFile(path.join(folder, MANIFEST_FILE), 'utf8'))
  const modulePath = (module: string) => path.join(folder, 'modules', `${module}.ko`)
  return {
    version: manifest.version,
    vmlinuz: path.join(folder, KERNEL_FILE),
    digest,
    bootModules: manifest.boot_modules.map(modulePath),
    laterModules: manifest.later_modules.map(modulePath),
  }
}

async function buildKernel(store: Store, build: Build, suite: string): Promise<Kernel> {
  requireTools('apt-get', 'dpkg-deb', 'xz', 'setpriv', 'unshare')
  const apt = await openApt(build, await findMirror(), suite)
  const wanted = (await listDependencies(apt, META_PACKAGE)).find((dependency) => dependency.startsWith('linux-image-'))
  if (wanted === undefined) throw new Error(`${META_PACKAGE} of ${suite} names no kernel`)
  const unpacked = await unpackPackage(build, apt, wanted)
  const version = wanted.replace('linux-image-', '')

  const folder = path.join(build.folder, 'kernel')
  await mkdir(path.join(folder, 'modules'), { recursive: true })
  await copyFile(path.join(unpacked, 'boot', `vmlinuz-${version}`), path.join(folder, KERNEL_FILE))
  // From trixie on everything lies under /usr.
  const roots = ['lib/modules', 'usr/lib/modules'].map((root) => path.join(unpacked, root, version))
  const found = await Promise.all(roots.map((root) => findModules(root).catch(() => new Map<string, string>())))
  const modules = new Map(found.flatMap((map) => [...map]))
  // Asked only for what there is.
  const unpack = (module: string) => unpackModule(build, modules.get(module)!, path.join(folder, 'modules', module))
  const order = (names: readonly string[]) =>
    orderModules(
      names,
      (module) => modules.has(module),
      async (module) => readNeeds(await unpack(module)),
    )
  const boot = await order(BOOT_MODULES)
  const later = (await order(LATER_MODULES)).filter((module) => !boot.includes(module))

  const manifest: KernelManifest = { version, boot_modules: boot, later_modules: later }
  await writeFile(path.join(folder, MANIFEST_FILE), JSON.stringify(manifest, null, 2))
  const digest = await hashFolder(folder)
  await withContents(store, async () => {
    await place(folder, pathOf(store, 'kernels', folderOf(digest)))
    await linkName(store, build, 'kernels', nameOf(suite), digest)
  })
  return readKernel(store, digest)
}

/** Gives its path: a plain ELF file, as finit_module(2) takes it. */
async function unpackModule(build: Build, from: string, to: string): Promise<string> {
  const plain = `${to}.ko`
  const isCompressed = from.endsWith('.xz')
  const copy = isCompressed ? `${plain}.xz` : plain
  await copyFile(from, copy)
  if (isCompressed)
    await runCommandOrThrow('xz', ['--decompress', '--force', copy], { env: TOOL_ENV, signal: build.signal })
  await chmod(plain, 0o444)
  return plain
}
