/**
 * Packs a directory into an ext4 image without mounting it. Owners, modes, links, device files and extended attributes
 * are preserved. The image is the read-only base of the sandboxes' disks: each disk is a larger overlay in which the
 * guest grows the file system online. So the image is small, and its tables have space for growth.
 */
import { rm } from 'node:fs/promises'
import { runCommand, runCommandOrThrow } from '../run-command.ts'
import type { Build } from './build.ts'
import { TOOL_ENV as env } from './tools.ts'

const MIB = 1024 ** 2
const BLOCK_BYTES = 4096
/** The default of mke2fs. Space that is added by growing gets inodes at the same ratio. */
const BYTES_PER_INODE = 16_384
/** The default of mke2fs for 1 to 2 GiB: large enough for concurrent writers, small in an overlay that is saved. */
const JOURNAL_MIB = 32
/** The maximum size for growing online. It is above the 60 GiB of the largest plan and costs 32 blocks of tables. */
const MAX_GROWTH_BYTES = 256 * 1024 ** 3
/** Free space in the image, so that a sandbox with the smallest disk can start. */
const FREE_MIB = 64
const MAX_ATTEMPTS = 3
const TIMEOUT_MS = 1_800_000

/** Listed explicitly, so that the defaults in this machine's mke2fs.conf do not decide which kernels can mount it. */
const FEATURES =
  'none,has_journal,ext_attr,resize_inode,dir_index,sparse_super,large_file,filetype,extent,huge_file,flex_bg,metadata_csum,64bit,dir_nlink,extra_isize'

export async function packExt4(build: Build, folder: string, file: string): Promise<void> {
  build.progress('packing the file system')
  await makeExt4(build, folder, file, estimateMib(await measure(folder, build.signal)))
  build.progress('checking the file system')
  await runCommandOrThrow('e2fsck', ['-f', '-n', file], { env, signal: build.signal, timeoutMs: TIMEOUT_MS })
}

/** Retries with a larger size if it was too small: on a compressing file system, files look smaller than they are. */
export async function makeExt4({ signal }: Build, folder: string, file: string, firstMib: number): Promise<void> {
  for (let sizeMib = firstMib, attempt = 1; ; sizeMib = Math.ceil(sizeMib * 1.5), attempt++) {
    await rm(file, { force: true })
    const result = await runCommand('mke2fs', mke2fsArgs(folder, file, sizeMib), { env, signal, timeoutMs: TIMEOUT_MS })
    if (result.exitCode === 0) return
    const isFull = /allocate|No space|too small|no free/i.test(result.stderr)
    if (!isFull || attempt === MAX_ATTEMPTS) throw new Error(`mke2fs failed at ${sizeMib} MiB: ${result.stderr.trim()}`)
  }
}

export type Measure = { bytes: number; inodes: number }

export function estimateMib({ bytes, inodes }: Measure): number {
  // On average half a block is unused at the end of a file; the other half is for directories and attributes.
  const content = bytes + inodes * BLOCK_BYTES
  const tables = 1.05
  const forContent = (content * tables) / MIB + JOURNAL_MIB + FREE_MIB
  const forInodes = (inodes * BYTES_PER_INODE * 1.1) / MIB
  return Math.ceil(Math.max(forContent, forInodes))
}

export const mke2fsArgs = (folder: string, file: string, sizeMib: number): string[] => [
  '-q',
  '-F',
  ...['-t', 'ext4', '-O', FEATURES, '-L', 'root'],
  ...['-b', `${BLOCK_BYTES}`, '-I', '256', '-i', `${BYTES_PER_INODE}`, '-m', '0'],
  ...['-J', `size=${JOURNAL_MIB}`],
  // Inode tables are initialised here, not by every sandbox in its overlay. The journal of a new file is zero already.
  ...['-E', `lazy_itable_init=0,lazy_journal_init=1,nodiscard,resize=${MAX_GROWTH_BYTES / BLOCK_BYTES}`],
  ...['-d', folder, file, `${sizeMib}M`],
]

/** Counts hard links once and sparse files by their allocated size. */
async function measure(folder: string, signal: AbortSignal | undefined): Promise<Measure> {
  const du = async (option: string) => {
    const { stdout } = await runCommandOrThrow('du', ['-s', option, folder], { env, signal, timeoutMs: TIMEOUT_MS })
    return Number.parseInt(stdout, 10)
  }
  return { bytes: await du('-B1'), inodes: await du('--inodes') }
}
