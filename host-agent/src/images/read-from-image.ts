/**
 * Reads a file of a root file system without mounting it: debugfs does, whose input is hostile. It runs in a jail like that of
 * other tools (run-on-file.ts), with the image as a descriptor that it can only read. The command line uses this without a
 * host agent, so there is no launcher: the jailed program becomes a child of this process, and its end is that of its output.
 */
import { spawn } from 'node:child_process'
import { open } from 'node:fs/promises'
import type { Readable } from 'node:stream'
import { text } from 'node:stream/consumers'
import { JAIL_BINARY } from '../vmm/jail/options.ts'
import { ensureToolsRoot } from '../vmm/jail/root.ts'
import { findProcess, killProcess } from '../vmm/process.ts'

/** Without rights: every user may read the image. */
const UID = 65_534
const FILE_FD = 3
const REPORT_FD = 4
const TIMEOUT_MS = 60_000
const BYTES_MAX = 64 * 1024 * 1024
const OPEN_FILES_MAX = 64
/** It writes nothing, and makes no threads; other processes of this user count. */
const JAIL = [
  ...['--uid', `${UID}`, '--gid', `${UID}`, '--filter', '--dies-with-parent'],
  ...['--limit', 'fsize', '0', '--limit', 'nofile', `${OPEN_FILES_MAX}`],
  ...['--report', `${REPORT_FD}`, '--'],
]

/** Empty if the file does not exist. `cacheDir` receives the root directory of the jail. */
export async function readFromImage(cacheDir: string, image: string, file: string): Promise<string> {
  const { folder, programs } = await ensureToolsRoot(cacheDir, ['debugfs'])
  const handle = await open(image, 'r')
  try {
    const command = [programs.debugfs, '-R', `cat ${file}`, `/proc/self/fd/${FILE_FD}`]
    const child = spawn(JAIL_BINARY, ['--root', folder, ...JAIL, ...command], {
      cwd: '/',
      env: {},
      stdio: ['ignore', 'pipe', 'ignore', handle.fd, 'pipe'],
    })
    const [output, report] = [child.stdout as Readable, child.stdio[REPORT_FD] as Readable]
    const content = readLimited(output)
    const started = await text(report)
    const pid = /^pid (\d+)$/m.exec(started)?.[1]
    if (pid === undefined || started.includes('error')) throw new Error(`failed to start debugfs: ${started.trim()}`)
    const tool = findProcess(Number(pid))
    const timer = setTimeout(
      () => output.destroy(new Error(`debugfs read ${file} for more than ${TIMEOUT_MS} ms`)),
      TIMEOUT_MS,
    )
    return await content.finally(async () => {
      clearTimeout(timer)
      if (tool) await killProcess(tool) // It has exited, unless a limit was reached.
    })
  } finally {
    await handle.close()
  }
}

async function readLimited(output: Readable): Promise<string> {
  const chunks: Buffer[] = []
  let bytes = 0
  for await (const chunk of output) {
    bytes += chunk.length
    if (bytes > BYTES_MAX) throw new Error(`a file is longer than ${BYTES_MAX} bytes`)
    chunks.push(chunk)
  }
  return Buffer.concat(chunks).toString()
}
