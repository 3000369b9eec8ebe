/**
 * A directory as an ext4 file, without mounting anything: owners, modes, links, device files and extended attributes
 * come along as they are. It is the read-only base of sandboxes' disks, each a larger overlay in which the guest grows
 * the filesystem online: so it is small, and has room in its tables for growth.
 */
import { rm } from 'node:fs/promises'
import { runCommand, runCommandOrThrow } from '../run-command.ts'
import type { Build } from './build.ts'
import { TOOL_ENV as env } from './tools.ts'

const MIB = 1024 ** 2
const BLOCK_BYTES = 4096
/** One inode for so many bytes, mke2fs's usual; it holds for what is added by growing, too. */
const BYTES_PER_INODE = 16_384
/** As a disk of 1 to 2 GiB gets by itself: large enough to keep writers apart, small in an overlay that is saved. */
const JOURNAL_MIB = 32
/** The largest disk that still grows online: above the 60 GiB of the largest plan, for 32 blocks of tables. */
const GROWS_TO_BYTES = 256 * 1024 ** 3
/** Free in an image, so that a sandbox with the smallest disk can start at all. */
const SLACK_MIB = 64
const TRIES = 3
const TIMEOUT_MS = 1_800_000

/** Named one by one: what a machine's mke2fs.conf has as its defaults must not decide which kernels can mount it. */
const FEATURES =
  'none,has_journal,ext_attr,resize_inode,dir_index,sparse_super,large_file,filetype,extent,huge_file,flex_bg,metadata_csum,64bit,dir_nlink,extra_isize'

export async function packExt4(build: Build, folder: string, file: string): Promise<void> {
  build.progress('packing the file system')
  await makeExt4(build, folder, file, estimateMib(await measure(folder, build.signal)))
  build.progress('checking the file system')
  await runCommandOrThrow('e2fsck', ['-f', '-n', file], { env, signal: build.signal, timeoutMs: TIMEOUT_MS })
}

/** A disk that compresses makes files look smaller than they are: tries again with more room when it was too little. */
export async function makeExt4({ signal }: Build, folder: string, file: string, firstMib: number): Promise<void> {
  for (let sizeMib = firstMib, tries = 1; ; sizeMib = Math.ceil(sizeMib * 1.5), tries++) {
    await rm(file, { force: true })
    const made = await runCommand('mke2fs', mke2fsArgs(folder, file, sizeMib), { env, signal, timeoutMs: TIMEOUT_MS })
    if (made.exitCode === 0) return
    const isFull = /allocate|No space|too small|no free/i.test(made.stderr)
    if (!isFull || tries === TRIES) throw new Error(`mke2fs failed at ${sizeMib} MiB: ${made.stderr.trim()}`)
  }
}

export type Measure = { bytes: number; inodes: number }

export function estimateMib({ bytes, inodes }: Measure): number {
  // Half a block is lost at the end of a file, on average; the other half is for directories and attributes.
  const content = bytes + inodes * BLOCK_BYTES
  const tables = 1.05
  const forContent = (content * tables) / MIB + JOURNAL_MIB + SLACK_MIB
  const forInodes = (inodes * BYTES_PER_INODE * 1.1) / MIB
  return Math.ceil(Math.max(forContent, forInodes))
}

export const mke2fsArgs = (folder: string, file: string, sizeMib: number): string[] => [
  '-q',
  '-F',
  ...['-t', 'ext4', '-O', FEATURES, '-L', 'root'],
  ...['-b', `${BLOCK_BYTES}`, '-I', '256', '-i', `${BYTES_PER_INODE}`, '-m', '0'],
  ...['-J', `size=${JOURNAL_MIB}`],
  // Tables are made here, once, and not by every sandbox in its own overlay. The journal of a fresh file is all zeros.
  ...['-E', `lazy_itable_init=0,lazy_journal_init=1,nodiscard,resize=${GROWS_TO_BYTES / BLOCK_BYTES}`],
  ...['-d', folder, file, `${sizeMib}M`],
]

/** Counts hard links once, and of sparse files what they hold. */
async function measure(folder: string, signal: AbortSignal | undefined): Promise<Measure> {
  const du = async (option: string) => {
    const { stdout } = await runCommandOrThrow('du', ['-s', option, folder], { env, signal, timeoutMs: TIMEOUT_MS })
    return Number.parseInt(stdout, 10)
  }
  return { bytes: await du('-B1'), inodes: await du('--inodes') }
}
