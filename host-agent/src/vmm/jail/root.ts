/**
 * The root directory of jails: a folder in the cache with QEMU, the libraries it is linked with and its firmware, and
 * nothing else. All VMMs share it, read-only. It is a copy, because one mount shows it whole; a mount for each of the
 * sixty files would cost every VMM milliseconds.
 */
import { createHash } from 'node:crypto'
import { existsSync, globSync, realpathSync, statSync } from 'node:fs'
import { chmod, copyFile, mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises'
import path from 'node:path'
import { moveIntoPlace } from '../../images/build.ts'
import { runCommandOrThrow } from '../../run-command.ts'
import { KVM_DEVICE } from '../kvm-access.ts'
import { SOCKETS_IN_JAIL, WORK_IN_JAIL } from './options.ts'

/** Firmware that the machines of renderArgs load. QEMU looks for it in these folders of Debian and others. */
const FIRMWARE = ['bios-256k.bin', 'kvmvapic.bin', 'linuxboot_dma.bin']
const FIRMWARE_FOLDERS = ['/usr/share/qemu', '/usr/share/seabios', '/usr/share/qemu-firmware']
/** Some distributions ship the emulator as a module. */
const MODULES = '/usr/lib{,64}/{,*/}qemu/accel-tcg-x86_64.so'

/** `qemu` is the absolute path of the program, which is the same inside. */
export type JailRoot = { folder: string; qemu: string }

/** `binary` is a name on the PATH. */
export async function ensureJailRoot(cacheDir: string, binary: string): Promise<JailRoot> {
  const qemu = findProgram(binary)
  const files = await listFiles(qemu)
  const folder = path.join(cacheDir, 'jail', keyOf(files))
  if (!existsSync(folder)) await build(folder, files)
  return { folder, qemu }
}

function findProgram(name: string): string {
  const folders = process.env.PATH?.split(':') ?? []
  const program = folders.map((folder) => path.join(folder, name)).find((file) => existsSync(file))
  if (program === undefined) throw new Error(`${name} is not on the PATH`)
  return realpathSync(program)
}

async function listFiles(qemu: string): Promise<string[]> {
  const programs = [qemu, ...globSync(MODULES)]
  const libraries = await Promise.all(programs.map(listLibraries))
  const firmware = FIRMWARE_FOLDERS.flatMap((folder) => FIRMWARE.map((name) => path.join(folder, name)))
  return [...new Set([...programs, ...libraries.flat(), ...firmware.filter((file) => existsSync(file))])].sort()
}

/** Lines are `name => path (address)`, and `path (address)` for the loader. */
async function listLibraries(program: string): Promise<string[]> {
  const { stdout } = await runCommandOrThrow('ldd', [program])
  return [...stdout.matchAll(/(\/\S+) \(0x/g)].map(([, file]) => file!)
}

/** A package upgrade changes it. */
function keyOf(files: readonly string[]): string {
  const hash = createHash('sha256')
  for (const file of files) {
    const { size, mtimeMs } = statSync(file)
    hash.update(`${file} ${size} ${mtimeMs}\n`)
  }
  return hash.digest('hex').slice(0, 32)
}

/** It appears with one rename, whole and on disk. Another host agent may build it at the same time. */
async function build(folder: string, files: readonly string[]): Promise<void> {
  await mkdir(path.dirname(folder), { recursive: true })
  const building = await mkdtemp(`${folder}.`)
  try {
    const folders = new Set(files.flatMap((file) => parentsOf(file)))
    for (const name of ['/', '/proc', '/dev', WORK_IN_JAIL, SOCKETS_IN_JAIL, ...folders]) {
      await mkdir(path.join(building, name), { recursive: true })
      await chmod(path.join(building, name), 0o755) // Whatever the umask is.
    }
    await writeFile(path.join(building, KVM_DEVICE), '') // The device is mounted on it.
    for (const file of files) {
      await copyFile(file, path.join(building, file))
      await chmod(path.join(building, file), 0o555)
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
