/**
 * Checks an ext4 file that a guest wrote, and makes it as small as its content allows, with some free space. The size of the
 * file becomes the smallest disk of the image.
 */
import { stat, truncate } from 'node:fs/promises'
import { FILE, runOnFile, type Tool, type ToolDeps } from './run-on-file.ts'

const MIB = 1024 ** 2
/** As in images that are built here (ext4.ts). */
const FREE_MIB = 64
/** "File system errors corrected". */
const E2FSCK_CORRECTED = 1

/** Returns the size of its files and tables. */
export async function shrinkExt4(deps: ToolDeps, file: string, uid: number, signal?: AbortSignal): Promise<number> {
  const run = async (command: readonly [Tool, ...string[]], accepted = [0]): Promise<string> => {
    const { exitCode, output } = await runOnFile(deps, file, uid, command, signal)
    if (accepted.includes(exitCode)) return output
    const tail = output.trim().split('\n').slice(-5).join('\n')
    throw new Error(`${command[0]} failed on the file system with exit code ${exitCode}: ${tail}`)
  }
  await run(['e2fsck', '-f', '-y', FILE], [0, E2FSCK_CORRECTED])
  const { blockBytes, usedBytes } = parseSize(await run(['dumpe2fs', '-h', FILE]))
  const minimum = /minimum size of the filesystem: (\d+)/.exec(await run(['resize2fs', '-P', FILE]))?.[1]
  if (minimum === undefined) throw new Error('resize2fs reports no minimum size')
  const wantedMib = Math.ceil((Number(minimum) * blockBytes) / MIB) + FREE_MIB
  if (wantedMib * MIB < (await stat(file)).size) {
    await run(['resize2fs', FILE, `${wantedMib}M`])
    await truncate(file, wantedMib * MIB)
  }
  await run(['e2fsck', '-f', '-n', FILE])
  return usedBytes
}

function parseSize(text: string): { blockBytes: number; usedBytes: number } {
  const read = (name: string): number => {
    const value = new RegExp(`^${name}:\\s+(\\d+)$`, 'm').exec(text)?.[1]
    if (value === undefined) throw new Error(`the file system has no ${name.toLowerCase()}`)
    return Number(value)
  }
  const blockBytes = read('Block size')
  return { blockBytes, usedBytes: (read('Block count') - read('Free blocks')) * blockBytes }
}
