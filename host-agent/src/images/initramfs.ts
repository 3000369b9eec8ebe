/**
 * Builds the initramfs of the guests: the guest agent as /init, the program that mounts buckets, and the kernel modules for the
 * disk. With it any root file system boots, and none has to contain these programs (guest-agent/src/boot.rs).
 */
import { createHash } from 'node:crypto'
import { readdir, readFile, rm, stat, utimes, writeFile } from 'node:fs/promises'
import path from 'node:path'
import { gzipSync } from 'node:zlib'
import { type BuildOptions, buildOnce, moveIntoPlace } from './build.ts'
import { type CpioEntry, renderCpio } from './cpio.ts'
import type { GuestPrograms } from './guest-programs.ts'
import type { Kernel } from './kernel.ts'
import { digestOf, folderOf, type ImageCache, pathOf } from './layout.ts'

export type Initramfs = { path: string; digest: string }

const UNUSED_AFTER_MS = 30 * 24 * 3_600_000

/** The name is a digest of the content, so another agent or kernel gives another initramfs. */
export async function ensureInitramfs(
  cache: ImageCache,
  kernel: Pick<Kernel, 'bootModules'>,
  programs: GuestPrograms,
  options: BuildOptions = {},
): Promise<Initramfs> {
  const archive = await packInitramfs(programs, kernel.bootModules)
  const digest = digestOf(createHash('sha256').update(archive).digest('hex'))
  const file = pathOf(cache, 'initramfs', folderOf(digest))
  // The modification time is the time of the last use.
  const find = () =>
    utimes(file, new Date(), new Date()).then(
      () => ({ path: file, digest }),
      () => undefined,
    )
  return buildOnce(cache, 'initramfs', options, find, async ({ folder }) => {
    const built = path.join(folder, 'initramfs')
    await writeFile(built, gzipSync(archive), { mode: 0o444 })
    await moveIntoPlace(built, file)
    return { path: file, digest }
  })
}

/** Removes files of old agents and kernels. One that is needed again is built in a moment. */
export async function sweepInitramfs(cache: ImageCache, now = Date.now()): Promise<void> {
  for (const name of await readdir(pathOf(cache, 'initramfs'))) {
    const file = pathOf(cache, 'initramfs', name)
    const found = await stat(file).catch(() => undefined) // Another process removed it meanwhile.
    if (found && now - found.mtimeMs > UNUSED_AFTER_MS) await rm(file, { force: true })
  }
}

/** `modules` are in load order. */
export async function packInitramfs(programs: GuestPrograms, modules: readonly string[]): Promise<Buffer> {
  const agent = await readProgram('guest agent', programs.agent)
  const bucketMount = await readProgram('mount program', programs.bucketMount)
  const packed = await Promise.all(modules.map(packModule))
  return renderCpio([
    { type: 'directory', path: 'dev' },
    // The kernel opens it as stdin and stdout of /init, before anything is mounted.
    { type: 'character-device', path: 'dev/console', major: 5, minor: 1 },
    ...['proc', 'sys', 'newroot', 'modules'].map((name): CpioEntry => ({ type: 'directory', path: name })),
    ...packed,
    {
      type: 'file',
      path: 'modules/order',
      data: Buffer.from(modules.map((file) => `${path.basename(file)}\n`).join('')),
    },
    { type: 'file', path: 'init', mode: 0o755, data: agent },
    { type: 'file', path: 'bucket-mount', mode: 0o755, data: bucketMount },
  ])
}

const ELF_MAGIC = Buffer.from('\x7fELF', 'latin1')

async function readProgram(name: string, file: string): Promise<Buffer> {
  const program = await readFile(file).catch((error) => {
    throw new Error(`there is no ${name} at ${file}; build it first`, { cause: error })
  })
  if (!program.subarray(0, ELF_MAGIC.length).equals(ELF_MAGIC))
    throw new Error(`the ${name} at ${file} is not an ELF program`)
  return program
}

const packModule = async (file: string): Promise<CpioEntry> => ({
  type: 'file',
  path: `modules/${path.basename(file)}`,
  data: await readFile(file),
})
