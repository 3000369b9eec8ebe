/**
 * A machine that has KVM, on one that has not (platform 4.9): QEMU without KVM emulates a processor with SVM, and a
 * kernel with kvm-amd in it offers /dev/kvm. What works there is what KVM makes of our command lines; how fast it is
 * tells nothing.
 *
 * It boots as a sandbox does, from our initramfs with the agent as its first process. Its root holds QEMU with its
 * libraries, Node, the sources of the host agent, and what the inner machine boots from.
 */
import { cp, mkdir, readdir, readFile, rename, rm, symlink, writeFile } from 'node:fs/promises'
import path from 'node:path'
import { gzipSync } from 'node:zlib'
import { listDependencies, openApt, unpackPackage } from '../images/debian-package.ts'
import { openImageStore, readCacheDir } from '../images/index.ts'
import { packInitramfs } from '../images/initramfs.ts'
import { suiteForQemu } from '../images/kernel.ts'
import { findMirror } from '../images/mirror.ts'
import { BOOT_MODULES, findModules, orderModules, readNeeds } from '../images/modules.ts'
import { runCommandOrThrow } from '../run-command.ts'
import type { Parts } from '../testing/bare-vm.ts'
import type { Machine } from '../vmm/args.ts'
import { detectMachine } from '../vmm/machine.ts'

export type InsideResult = { machine: Machine; why: string; clones: { kvm: boolean; clocksource: string }[] }

const ROOT = path.resolve(import.meta.dirname, '../../..')
const GUEST_AGENT = path.join(ROOT, 'guest-agent/target/warren/guest-agent')
const IMAGE = 'debian:13'
const META_PACKAGE = 'linux-image-cloud-amd64'
const KVM_MODULES = ['irqbypass', 'kvm', 'kvm_amd']
const QEMU = '/usr/bin/qemu-system-x86_64'
/** What QEMU loads by name for a machine that boots a kernel. */
const FIRMWARE = ['bios-256k.bin', 'kvmvapic.bin', 'linuxboot_dma.bin']
const SOURCES = ['package.json', 'host-agent', 'protocol', 'kit']
const PACKAGES = ['@koromix', 'koffi', 'typebox']

/** Where the outer machine keeps what the inner one starts from. */
export const INNER = { kernel: '/inner/vmlinuz', initramfs: '/inner/initramfs', image: '/inner/root.ext4' }
export const NODE = '/warren/node'
export const INSIDE = '/warren/host-agent/src/nested-kvm/inside.ts'

export async function makeOuter(folder: string): Promise<Parts> {
  const cacheDir = readCacheDir(process.env)
  const store = await openImageStore({ cacheDir, log: { info() {}, warn() {} } })
  const [{ machine }, kernel, image] = await Promise.all([detectMachine(), store.ensureKernel(), store.ensure(IMAGE)])
  const initramfs = await store.ensureInitramfs(kernel, GUEST_AGENT)
  const outerKernel = await ensureKvmKernel(path.join(cacheDir, 'nested-kvm', suiteForQemu(machine.version)))

  const outerInitramfs = path.join(folder, 'outer-initramfs')
  await writeFile(outerInitramfs, gzipSync(await packInitramfs(GUEST_AGENT, outerKernel.modules)))
  const inner = { kernel: kernel.vmlinuz, initramfs: initramfs.path, image: image.path }
  const root = await makeRoot(folder, inner)
  return { machine: emulated(machine), kernel: outerKernel.vmlinuz, initramfs: outerInitramfs, image: root, folder }
}

/** Also where this machine has KVM itself: the test is the same everywhere. */
const emulated = (machine: Machine): Machine => ({ ...machine, accel: 'tcg', cpu: 'max,erms=off,fsrm=off' })

/** Guests' kernels are kept without KVM's modules: this one is unpacked anew, once. */
async function ensureKvmKernel(folder: string): Promise<{ vmlinuz: string; modules: string[] }> {
  const order = path.join(folder, 'order')
  const read = async () => ({
    vmlinuz: path.join(folder, 'vmlinuz'),
    modules: (await readFile(order, 'utf8')).split('\n').map((name) => path.join(folder, `${name}.ko`)),
  })
  const made = await read().catch(() => undefined)
  if (made) return made

  const building = `${folder}.new`
  await rm(building, { recursive: true, force: true })
  await mkdir(path.join(building, 'kept'), { recursive: true })
  const build = { folder: building, progress: () => {}, signal: undefined }
  const apt = await openApt(build, await findMirror(), path.basename(folder))
  const wanted = (await listDependencies(apt, META_PACKAGE)).find((name) => name.startsWith('linux-image-'))
  if (wanted === undefined) throw new Error(`${META_PACKAGE} names no kernel`)
  const unpacked = await unpackPackage(build, apt, wanted)
  const kept = path.join(building, 'kept')
  await cp(path.join(unpacked, 'boot', wanted.replace('linux-image-', 'vmlinuz-')), path.join(kept, 'vmlinuz'))
  const modules = await findModules(unpacked)
  const unpack = async (name: string) => {
    const from = modules.get(name)! // Asked only for what there is.
    const to = path.join(kept, `${name}.ko`)
    await cp(from, from.endsWith('.xz') ? `${to}.xz` : to)
    if (from.endsWith('.xz')) await runCommandOrThrow('xz', ['--decompress', '--force', `${to}.xz`])
    return to
  }
  const ordered = await orderModules(
    [...BOOT_MODULES, ...KVM_MODULES],
    (name) => modules.has(name),
    async (name) => readNeeds(await unpack(name)),
  )
  await writeFile(path.join(kept, 'order'), ordered.join('\n'))
  await rm(folder, { recursive: true, force: true })
  await rename(kept, folder)
  await rm(building, { recursive: true, force: true })
  return read()
}

async function makeRoot(folder: string, inner: typeof INNER): Promise<string> {
  const root = path.join(folder, 'outer-root')
  const put = async (from: string, to: string) => {
    await mkdir(path.dirname(path.join(root, to)), { recursive: true })
    await cp(from, path.join(root, to), { recursive: true, dereference: true, filter: isWanted })
  }
  for (const name of ['dev', 'proc', 'sys', 'run', 'tmp', 'root', 'etc']) {
    await mkdir(path.join(root, name), { recursive: true })
  }
  const programs = [QEMU, '/bin/sh', process.execPath]
  for (const library of new Set((await Promise.all(programs.map(listLibraries))).flat())) await put(library, library)
  await put(QEMU, QEMU)
  await put('/bin/sh', '/bin/sh')
  await put(process.execPath, NODE)
  for (const name of FIRMWARE) await put(await findFirmware(name), `/usr/share/qemu/${name}`)
  for (const name of SOURCES) await put(path.join(ROOT, name), `/warren/${name}`)
  for (const name of PACKAGES) await put(path.join(ROOT, 'node_modules', name), `/warren/node_modules/${name}`)
  await mkdir(path.join(root, 'warren/node_modules/@warren'))
  // Links, as npm makes them: Node runs no TypeScript that lies in node_modules itself.
  for (const name of ['protocol', 'kit']) {
    await symlink(`../../${name}`, path.join(root, 'warren/node_modules/@warren', name))
  }
  for (const key of ['kernel', 'initramfs'] as const) await put(inner[key], INNER[key])
  // Its holes stay holes.
  await runCommandOrThrow('cp', ['--sparse=always', inner.image, path.join(root, INNER.image)])
  const file = path.join(folder, 'outer.ext4')
  await runCommandOrThrow('mke2fs', ['-q', '-t', 'ext4', '-m', '0', '-d', root, file, '3G'], { timeoutMs: 300_000 })
  await rm(root, { recursive: true, force: true })
  return file
}

const isWanted = (from: string): boolean => !/\/(node_modules\/\.|target\/|\.git\/)/.test(from)

async function listLibraries(program: string): Promise<string[]> {
  const { stdout } = await runCommandOrThrow('ldd', [program])
  return [...stdout.matchAll(/(?:=> )?(\/\S+) \(0x/g)].map((match) => match[1]!) // The group is not optional.
}

async function findFirmware(name: string): Promise<string> {
  for (const folder of ['/usr/share/qemu', '/usr/share/seabios']) {
    if ((await readdir(folder).catch((): string[] => [])).includes(name)) return path.join(folder, name)
  }
  throw new Error(`there is no ${name} of QEMU here`)
}
