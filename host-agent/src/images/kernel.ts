/**
 * Builds the kernel of the guests: Debian's cloud kernel, from the suite that works with this machine's QEMU.
 *
 * With QEMU 7.2 and without KVM, kernel 6.12 panics in one boot of four; 6.1 boots reliably. Kernels with a known defect are
 * left out (choose-kernel.ts).
 */
import { chmod, copyFile, mkdir, readFile, writeFile } from 'node:fs/promises'
import path from 'node:path'
import { isAtLeast } from '../doctor/version.ts'
import { runCommandOrThrow } from '../run-command.ts'
import { type Build, type BuildOptions, buildOnce, findNewer, moveIntoPlace } from './build.ts'
import { chooseKernel, isDefective } from './choose-kernel.ts'
import { listDependencies, listPackages, openApt, unpackPackage } from './debian-package.ts'
import { hashFolder } from './hash.ts'
import { folderOf, type ImageCache, KERNEL_FILE, MANIFEST_FILE, pathOf } from './layout.ts'
import { findMirror } from './mirror.ts'
import { BOOT_MODULES, findModules, LATER_MODULES, orderModules, readDependencies } from './modules.ts'
import { findDigest, linkName, withContentLock } from './names.ts'
import type { PackageFile } from './package-files.ts'
import { requireTools, TOOL_ENV } from './tools.ts'

export type Kernel = {
  /** As printed by `uname -r`. */
  version: string
  vmlinuz: string
  digest: string
  /** The package it is from. Absent for one that an earlier version has built. */
  package?: PackageFile
  /** Paths of the modules to load at boot, each after its dependencies. */
  bootModules: string[]
  /** Paths of modules that may be loaded later. */
  laterModules: string[]
}

type KernelManifest = { version: string; package?: PackageFile; boot_modules: string[]; later_modules: string[] }

const META_PACKAGE = 'linux-image-cloud-amd64'
const PACKAGE_PREFIX = 'linux-image-'

export async function ensureKernel(cache: ImageCache, options: BuildOptions = {}): Promise<Kernel> {
  const suite = suiteForQemu(await readQemuVersion())
  return buildOnce(
    cache,
    nameOf(suite),
    options,
    () => findKernel(cache, suite),
    (build) => buildKernel(cache, build, suite),
  )
}

/** Undefined if none is built yet. */
export async function findCurrentKernel(cache: ImageCache): Promise<Kernel | undefined> {
  return findKernel(cache, suiteForQemu(await readQemuVersion()))
}

/** Fetches the newest kernel of the suite. Bases with another kernel are rebuilt (bases/base.ts). */
export async function rebuildKernel(cache: ImageCache, options: BuildOptions = {}): Promise<Kernel> {
  const suite = suiteForQemu(await readQemuVersion())
  const find = await findNewer(() => findKernel(cache, suite))
  return buildOnce(cache, nameOf(suite), options, find, (build) => buildKernel(cache, build, suite))
}

const nameOf = (suite: string): string => `kernel-${suite}`

export const suiteForQemu = (version: string): 'bookworm' | 'trixie' =>
  isAtLeast(version, '8') ? 'trixie' : 'bookworm'

async function readQemuVersion(): Promise<string> {
  requireTools('qemu-system-x86_64')
  const { stdout } = await runCommandOrThrow('qemu-system-x86_64', ['--version'], { env: TOOL_ENV })
  const version = /version (\d+(\.\d+)+)/.exec(stdout)?.[1]
  if (version === undefined)
    throw new Error(`failed to parse the version of qemu-system-x86_64: ${stdout.slice(0, 200)}`)
  return version
}

async function findKernel(cache: ImageCache, suite: string): Promise<Kernel | undefined> {
  const digest = await findDigest(cache, 'kernels', nameOf(suite))
  if (digest === undefined) return undefined
  const kernel = await readKernel(cache, digest)
  return isDefective(kernel.version) ? undefined : kernel // Its defect may have become known after it was built.
}

async function readKernel(cache: ImageCache, digest: string): Promise<Kernel> {
  const folder = pathOf(cache, 'kernels', folderOf(digest))
  const manifest: KernelManifest = JSON.parse(await readFile(path.join(folder, MANIFEST_FILE), 'utf8'))
  const modulePath = (module: string) => path.join(folder, 'modules', `${module}.ko`)
  return {
    version: manifest.version,
    vmlinuz: path.join(folder, KERNEL_FILE),
    digest,
    ...(manifest.package && { package: manifest.package }),
    bootModules: manifest.boot_modules.map(modulePath),
    laterModules: manifest.later_modules.map(modulePath),
  }
}

async function buildKernel(cache: ImageCache, build: Build, suite: string): Promise<Kernel> {
  requireTools('apt-get', 'dpkg-deb', 'xz', 'setpriv', 'unshare')
  const apt = await openApt(build, await findMirror(), suite)
  const newest = (await listDependencies(apt, META_PACKAGE)).find((dependency) => dependency.startsWith(PACKAGE_PREFIX))
  if (newest === undefined) throw new Error(`${META_PACKAGE} of ${suite} depends on no kernel`)
  const withoutPrefix = (name: string) => name.slice(PACKAGE_PREFIX.length)
  const available = (await listPackages(apt, PACKAGE_PREFIX)).map(withoutPrefix)
  const version = chooseKernel(withoutPrefix(newest), available)
  const { folder: unpacked, package: file } = await unpackPackage(build, apt, `${PACKAGE_PREFIX}${version}`)

  const folder = path.join(build.folder, 'kernel')
  await mkdir(path.join(folder, 'modules'), { recursive: true })
  await copyFile(path.join(unpacked, 'boot', `vmlinuz-${version}`), path.join(folder, KERNEL_FILE))
  // Since trixie, modules are under /usr.
  const roots = ['lib/modules', 'usr/lib/modules'].map((root) => path.join(unpacked, root, version))
  const found = await Promise.all(roots.map((root) => findModules(root).catch(() => new Map<string, string>())))
  const modules = new Map(found.flatMap((map) => [...map]))
  // Called only for modules that exist.
  const unpack = (module: string) => unpackModule(build, modules.get(module)!, path.join(folder, 'modules', module))
  const order = (names: readonly string[]) =>
    orderModules(
      names,
      (module) => modules.has(module),
      async (module) => readDependencies(await unpack(module)),
    )
  const boot = await order(BOOT_MODULES)
  const later = (await order(LATER_MODULES)).filter((module) => !boot.includes(module))

  const manifest: KernelManifest = { version, package: file, boot_modules: boot, later_modules: later }
  await writeFile(path.join(folder, MANIFEST_FILE), JSON.stringify(manifest, null, 2))
  const digest = await hashFolder(folder)
  await withContentLock(cache, async () => {
    await moveIntoPlace(folder, pathOf(cache, 'kernels', folderOf(digest)))
    await linkName(cache, build, 'kernels', nameOf(suite), digest)
  })
  return readKernel(cache, digest)
}

/** Returns the path of the uncompressed module, as finit_module(2) needs it. */
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
