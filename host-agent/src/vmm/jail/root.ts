/**
 * The root directories of jails: folders in the cache with a program, the libraries it is linked with, the files it loads by
 * name, and nothing else. All VMMs share one, read-only. It is a copy, because one mount shows it whole; a mount for each
 * of the sixty files would cost every VMM milliseconds.
 */
import { createHash } from 'node:crypto'
import { existsSync, globSync, readFileSync, realpathSync, statSync } from 'node:fs'
import { chmod, copyFile, mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises'
import path from 'node:path'
import { findTool } from '../../doctor/find-tool.ts'
import { moveIntoPlace } from '../../images/build.ts'
import { runCommandOrThrow } from '../../run-command.ts'
import { KVM_DEVICE } from '../kvm-access.ts'
import { SOCKETS_IN_JAIL, WORK_IN_JAIL } from './options.ts'

/** Firmware that the machines of renderArgs load. QEMU looks for it in these folders of Debian and others. */
const FIRMWARE = ['bios-256k.bin', 'kvmvapic.bin', 'linuxboot_dma.bin']
const FIRMWARE_FOLDERS = ['/usr/share/qemu', '/usr/share/seabios', '/usr/share/qemu-firmware']
/** See read-only-ram/src/lib.rs. Built by tools/machine.sh. */
const READ_ONLY_RAM = path.resolve(import.meta.dirname, '../../../../read-only-ram/target/warren/libread_only_ram.so')
export const READ_ONLY_RAM_IN_JAIL = '/read-only-ram.so'
/** Some distributions ship the emulator as a module. */
const MODULES = '/usr/lib{,64}/{,*/}qemu/accel-tcg-x86_64.so'

/** `qemu` is the absolute path of the program, which is the same inside. */
export type JailRoot = { folder: string; qemu: string }
/** The paths of the programs by name, which are the same inside. */
export type ToolsRoot<Name extends string> = { folder: string; programs: Record<Name, string> }

/** `binary` is a name on the PATH. */
export async function ensureJailRoot(cacheDir: string, binary: string): Promise<JailRoot> {
  const qemu = findProgram(binary)
  const firmware = FIRMWARE_FOLDERS.flatMap((folder) => FIRMWARE.map((name) => path.join(folder, name)))
  const folder = await ensureRoot(cacheDir, {
    programs: [qemu, ...globSync(MODULES)],
    files: firmware.filter((file) => existsSync(file)),
    folders: [WORK_IN_JAIL, SOCKETS_IN_JAIL],
    ours: [[READ_ONLY_RAM, READ_ONLY_RAM_IN_JAIL]],
    emptyFiles: [KVM_DEVICE], // The device is mounted on it.
  })
  return { folder, qemu }
}

/** For tools that work on a descriptor, such as those of e2fsprogs. Nothing in it can be written. */
export async function ensureToolsRoot<Name extends string>(
  cacheDir: string,
  names: readonly Name[],
): Promise<ToolsRoot<Name>> {
  const found = names.map((name) => [name, findProgram(name)] as const)
  const folder = await ensureRoot(cacheDir, {
    programs: found.map(([, program]) => program),
    files: [],
    ours: [],
    folders: [],
    emptyFiles: ['/etc/mtab'], // resize2fs refuses to work without a list of mounts.
  })
  return { folder, programs: Object.fromEntries(found) as Record<Name, string> }
}

type Content = {
  programs: string[]
  files: string[]
  /** Files of this repository, and where they are inside. */
  ours: (readonly [from: string, to: string])[]
  folders: string[]
  emptyFiles: string[]
}

async function ensureRoot(cacheDir: string, content: Content): Promise<string> {
  const libraries = await Promise.all(content.programs.map(listLibraries))
  const files = [...new Set([...content.programs, ...libraries.flat(), ...content.files])].sort()
  const folder = path.join(cacheDir, 'jail', keyOf(files, content))
  if (!existsSync(folder)) await build(folder, files, content)
  return folder
}

function findProgram(name: string): string {
  const program = findTool({ env: process.env, isRoot: true }, name)
  if (program === undefined) throw new Error(`${name} is not on the PATH`)
  return realpathSync(program)
}

/** Lines are `name => path (address)`, and `path (address)` for the loader. */
async function listLibraries(program: string): Promise<string[]> {
  const { stdout } = await runCommandOrThrow('ldd', [program])
  return [...stdout.matchAll(/(\/\S+) \(0x/g)].map(([, file]) => file!)
}

/** A package upgrade changes it. */
function keyOf(files: readonly string[], { ours }: Content): string {
  const hash = createHash('sha256')
  for (const file of files) {
    const { size, mtimeMs } = statSync(file)
    hash.update(`${file} ${size} ${mtimeMs}\n`)
  }
  // By content: their times differ in every clone of the repository.
  for (const [from] of ours) hash.update(readFileSync(from))
  return hash.digest('hex').slice(0, 32)
}

/** It appears with one rename, whole and on disk. Another host agent may build it at the same time. */
async function build(folder: string, files: readonly string[], { ours, folders, emptyFiles }: Content): Promise<void> {
  await mkdir(path.dirname(folder), { recursive: true })
  const building = await mkdtemp(`${folder}.`)
  try {
    for (const name of ['/', '/proc', '/dev', ...folders, ...new Set([...files, ...emptyFiles].flatMap(parentsOf))]) {
      await mkdir(path.join(building, name), { recursive: true })
      await chmod(path.join(building, name), 0o755) // Whatever the umask is.
    }
    for (const file of emptyFiles) {
      await chmod(path.join(building, path.dirname(file)), 0o711) // Nothing to list.
      await writeFile(path.join(building, file), '')
      await chmod(path.join(building, file), 0o444)
    }
    for (const [from, to] of [...files.map((file) => [file, file] as const), ...ours]) {
      await copyFile(from, path.join(building, to))
      await chmod(path.join(building, to), 0o555)
    }
    await moveIntoPlace(building, folder)
  } finally {
    await rm(building, { recursive: true, force: true })
  }
}

/** The folders above a file, the highest first. */
function parentsOf(file: string): string[] {
  const parent = path.dirname(file)
  return parent === '/' ? [] : [...parentsOf(parent), parent]
}
