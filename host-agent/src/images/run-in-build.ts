/**
 * Runs a command of a build, which takes long, prints much and starts child processes.
 *
 * The command runs in a PID and mount namespace whose first process is killed when this process dies, for whatever
 * reason. With it end all processes and mounts of the namespace, so a build never continues without its parent. The
 * output is written to a file: its last line is shown as progress, its end as the error.
 */
import { open, readFile } from 'node:fs/promises'
import path from 'node:path'
import { stripVTControlCharacters } from 'node:util'
import { runCommand } from '../run-command.ts'
import type { Build } from './build.ts'
import { TOOL_ENV } from './tools.ts'

const POLL_MS = 500
const TAIL_BYTES = 8192
const LINES_IN_ERROR = 8
const PROGRESS_MAX_CHARS = 160
/** Long enough to download an image over a slow connection; stops a build that hangs. */
const DEFAULT_TIMEOUT_MS = 3_600_000

const KILLED_WITH_PARENT = ['--pdeathsig', 'KILL', 'unshare', '--pid', '--fork', '--kill-child', '--mount-proc', '--']
const REDIRECT_TO_LOG = 'log=$1; shift; exec "$@" >"$log" 2>&1'

export type CommandOptions = { env?: NodeJS.ProcessEnv; timeoutMs?: number; what: string }

export async function runInBuild(
  build: Build,
  command: string,
  args: readonly string[],
  { what, env = TOOL_ENV, timeoutMs = DEFAULT_TIMEOUT_MS }: CommandOptions,
): Promise<void> {
  const log = path.join(build.folder, '.log')
  build.progress(what)
  const stopWatching = watchLog(log, (text) => build.progress(`${what}: ${text}`))
  try {
    const { exitCode, stderr } = await runCommand(
      'setpriv',
      [...KILLED_WITH_PARENT, 'sh', '-c', REDIRECT_TO_LOG, 'sh', log, command, ...args],
      { env, timeoutMs, signal: build.signal },
    )
    if (exitCode === 0) return
    const output = (await readLastLines(log, LINES_IN_ERROR)) || stderr.trim() || 'no output'
    throw new Error(`${what}: ${command} failed with exit code ${exitCode}: ${output}`)
  } finally {
    stopWatching()
  }
}

function watchLog(log: string, onProgress: (text: string) => void): () => void {
  let last = ''
  let stopped = false
  const timer = setInterval(async () => {
    const line = (await readLastLines(log, 1)).slice(0, PROGRESS_MAX_CHARS)
    if (stopped || line === '' || line === last) return
    last = line
    const percent = countPackages(await readFile(log, 'utf8').catch(() => ''))
    onProgress(percent === undefined ? line : `${percent} %: ${line}`)
  }, POLL_MS)
  return () => {
    stopped = true
    clearInterval(timer)
  }
}

/**
 * Percent of the work of apt, from what it has printed: it announces the number of packages, then prints a line when it
 * unpacks and when it sets up each of them. Undefined while that number is unknown. mmdebstrap runs apt several times;
 * the numbers are added up.
 */
export function countPackages(log: string): number | undefined {
  const total = log.matchAll(/, (\d+) newly installed/g).reduce((sum, [, count]) => sum + Number(count), 0)
  if (total === 0) return undefined
  const steps = [...log.matchAll(/^(?:Unpacking|Setting up) /gm)].length
  return Math.min(Math.round((steps / (2 * total)) * 100), 100)
}

/** A carriage return counts as a line end, because progress bars use it. Empty if the file cannot be read. */
async function readLastLines(file: string, count: number): Promise<string> {
  const text = await readTail(file).catch(() => '') // The file does not exist before the command has started.
  const lines = stripVTControlCharacters(text).split(/[\r\n]+/)
  return lines
    .map((line) => line.trim())
    .filter((line) => line !== '')
    .slice(-count)
    .join('\n')
}

async function readTail(file: string): Promise<string> {
  const handle = await open(file, 'r')
  try {
    const { size } = await handle.stat()
    const length = Math.min(size, TAIL_BYTES)
    const { buffer } = await handle.read(Buffer.alloc(length), 0, length, size - length)
    return buffer.toString()
  } finally {
    await handle.close()
  }
}
