/**
 * Creates a VM with KVM on a machine without it: QEMU emulates a processor with SVM, and a kernel with kvm-amd provides
 * /dev/kvm inside. This tests whether KVM accepts our QEMU command lines; it says nothing about speed.
 *
 * The VM boots like a sandbox, from Warren's initramfs with the guest agent as its first process. Its root contains QEMU and
 * its libraries, Node, the sources of the host agent, and the files from which the inner VM boots.
 */
import { cp, mkdir, readdir, readFile, rename, rm, symlink, writeFile } from 'node:fs/promises'
import path from 'node:path'
import { gzipSync } from 'node:zlib'
import { listDependencies, openApt, unpackPackage } from '../images/debian-package.ts'
import { GUEST_PROGRAMS } from '../images/guest-programs.ts'
import { packInitramfs } from '../images/initramfs.ts'
import { suiteForQemu } from '../images/kernel.ts'
import { findMirror } from '../images/mirror.ts'
import { BOOT_MODULES, findModules, orderModules, readDependencies } from '../images/modules.ts'
import { openImageStore, readCacheDir } from '../images/store.ts'
import { runCommandOrThrow } from '../run-command.ts'
import type { Parts } from '../testing/bare-vm.ts'
import type { Machine } from '../vmm/args.ts'
import { JAIL_BINARY } from '../vmm/jail/options.ts'
import { ensureJailRoot, type JailRoot } from '../vmm/jail/root.ts'
import { detectMachine } from '../vmm/machine.ts'

export type InsideResult = { machine: Machine; why: string; clones: InsideClone[] }
/** The rest is of its QEMU process. */
type InsideClone = {
  kvm: boolean
  clocksource: string
  uid: number
  groups: number[]
  capabilities: string
  seccomp: string
}

const ROOT = path.resolve(import.meta.dirname, '../../..')
const IMAGE = 'debian:13'
const META_PACKAGE = 'linux-image-cloud-amd64'
const KVM_MODULES = ['irqbypass', 'kvm', 'kvm_amd']
const QEMU = '/usr/bin/qemu-system-x86_64'
/** Files that QEMU loads by name to boot a kernel. */
const FIRMWARE = ['bios-256k.bin', 'kvmvapic.bin', 'linuxboot_dma.bin']
const SOURCES = ['package.json', 'host-agent', 'protocol', 'kit']
const PACKAGES = ['@koromix', 'koffi', 'typebox']

/** Paths in the outer VM of the files from which the inner VM boots. */
export const INNER = { kernel: '/inner/vmlinuz', initramfs: '/inner/initramfs', image: '/inner/root.ext4' }
export const JAIL: JailRoot = { folder: '/jail-root', qemu: QEMU }
/** Of /dev/kvm there; any but that of root. */
export const KVM_GROUP = 654_321
export const NODE = '/warren/node'
const JAIL_INSIDE = '/warren/jail/target/warren/jail'
export const INSIDE = '/warren/host-agent/src/nested-kvm/inside.ts'

export async function makeOuter(folder: string): Promise<Parts> {
  const cacheDir = readCacheDir(process.env)
  const store = await openImageStore({ cacheDir, log: { info() {}, warn() {} } })
  const [{ machine }, kernel, image] = await Promise.all([detectMachine(), store.ensureKernel(), store.ensure(IMAGE)])
  const initramfs = await store.ensureInitramfs(kernel, GUEST_PROGRAMS)
  const outerKernel = await ensureKvmKernel(path.join(cacheDir, 'nested-kvm', suiteForQemu(machine.version)))

  const outerInitramfs = path.join(folder, 'outer-initramfs')
  await writeFile(outerInitramfs, gzipSync(await packInitramfs(GUEST_PROGRAMS, outerKernel.modules)))
  const inner = { kernel: kernel.vmlinuz, initramfs: initramfs.path, image: image.path }
  const root = await makeRoot(folder, inner)
  return { machine: emulated(machine), kernel: outerKernel.vmlinuz, initramfs: outerInitramfs, image: root, folder }
}

/** Emulates even if this machine has KVM, so that the test is the same everywhere. */
const emulated = (machine: Machine): Machine => ({ ...machine, accel: 'tcg', cpu: 'max,erms=off,fsrm=off' })

/** The guest kernels in the cache have no KVM modules, so this one is unpacked separately, once. */
async function ensureKvmKernel(folder: string): Promise<{ vmlinuz: string; modules: string[] }> {
  const order = path.join(folder, 'order')
  const read = async () => ({
    vmlinuz: path.join(folder, 'vmlinuz'),
    modules: (await readFile(order, 'utf8')).split('\n').map((name) => path.join(folder, `${name}.ko`)),
  })
  const existing = await read().catch(() => undefined)
  if (existing) return existing

  const building = `${folder}.new`
  await rm(building, { recursive: true, force: true })
  await mkdir(path.join(building, 'result'), { recursive: true })
  const build = { folder: building, progress: () => {}, signal: undefined }
  const apt = await openApt(build, await findMirror(), path.basename(folder))
  const wanted = (await listDependencies(apt, META_PACKAGE)).find((name) => name.startsWith('linux-image-'))
  if (wanted === undefined) throw new Error(`${META_PACKAGE} depends on no kernel`)
  const { folder: unpacked } = await unpackPackage(build, apt, wanted)
  const result = path.join(building, 'result')
  await cp(path.join(unpacked, 'boot', wanted.replace('linux-image-', 'vmlinuz-')), path.join(result, 'vmlinuz'))
  const modules = await findModules(unpacked)
  const unpack = async (name: string) => {
    const from = modules.get(name)! // Called only for modules that exist.
    const to = path.join(result, `${name}.ko`)
    await cp(from, from.endsWith('.xz') ? `${to}.xz` : to)
    if (from.endsWith('.xz')) await runCommandOrThrow('xz', ['--decompress', '--force', `${to}.xz`])
    return to
  }
  const ordered = await orderModules(
    [...BOOT_MODULES, ...KVM_MODULES],
    (name) => modules.has(name),
    async (name) => readDependencies(await unpack(name)),
  )
  await writeFile(path.join(result, 'order'), ordered.join('\n'))
  await rm(folder, { recursive: true, force: true })
  await rename(result, folder)
  await rm(building, { recursive: true, force: true })
  return read()
}

async function makeRoot(folder: string, inner: typeof INNER): Promise<string> {
  const root = path.join(folder, 'outer-root')
  const copy = async (from: string, to: string) => {
    await mkdir(path.dirname(path.join(root, to)), { recursive: true })
    await cp(from, path.join(root, to), { recursive: true, dereference: true, filter: isWanted })
  }
  for (const name of ['dev', 'proc', 'sys', 'run', 'tmp', 'root', 'etc']) {
    await mkdir(path.join(root, name), { recursive: true })
  }
  const programs = [QEMU, '/bin/sh', process.execPath]
  for (const library of new Set((await Promise.all(programs.map(listLibraries))).flat())) await copy(library, library)
  await copy(QEMU, QEMU)
  await copy('/bin/sh', '/bin/sh')
  await copy(process.execPath, NODE)
  for (const name of FIRMWARE) await copy(await findFirmware(name), `/usr/share/qemu/${name}`)
  for (const name of SOURCES) await copy(path.join(ROOT, name), `/warren/${name}`)
  for (const name of PACKAGES) await copy(path.join(ROOT, 'node_modules', name), `/warren/node_modules/${name}`)
  await mkdir(path.join(root, 'warren/node_modules/@warren'))
  // Symbolic links, as npm creates them: Node does not run TypeScript files inside node_modules.
  for (const name of ['protocol', 'kit']) {
    await symlink(`../../${name}`, path.join(root, 'warren/node_modules/@warren', name))
  }
  // Not by `copy`, which leaves out what was built.
  const { folder: jailRoot, qemu } = await ensureJailRoot(path.join(folder, 'cache'), path.basename(QEMU))
  if (qemu !== JAIL.qemu) throw new Error(`QEMU is ${qemu}, expected ${JAIL.qemu}`)
  await cp(jailRoot, path.join(root, JAIL.folder), { recursive: true })
  await mkdir(path.dirname(path.join(root, JAIL_INSIDE)), { recursive: true })
  await cp(JAIL_BINARY, path.join(root, JAIL_INSIDE))
  for (const key of ['kernel', 'initramfs'] as const) await copy(inner[key], INNER[key])
  // Keeps the file sparse.
  await runCommandOrThrow('cp', ['--sparse=always', inner.image, path.join(root, INNER.image)])
  const file = path.join(folder, 'outer.ext4')
  await runCommandOrThrow('mke2fs', ['-q', '-t', 'ext4', '-m', '0', '-d', root, file, '3G'], { timeoutMs: 300_000 })
  await rm(root, { recursive: true, force: true })
  return file
}

const isWanted = (from: string): boolean => !/\/(node_modules\/\.|target\/|\.git\/)/.test(from)

async function listLibraries(program: string): Promise<string[]> {
  const { stdout } = await runCommandOrThrow('ldd', [program])
  return [...stdout.matchAll(/(?:=> )?(\/\S+) \(0x/g)].map((match) => match[1]!) // The group is required.
}

async function findFirmware(name: string): Promise<string> {
  for (const folder of ['/usr/share/qemu', '/usr/share/seabios']) {
    if ((await readdir(folder).catch((): string[] => [])).includes(name)) return path.join(folder, name)
  }
  throw new Error(`failed to find ${name} of QEMU`)
}
