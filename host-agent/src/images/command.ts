/**
 * Commands of a build: long, talkative, and with children of their own.
 *
 * They run in a process and mount namespace whose first process dies with us, whatever kills us, and takes all others
 * and their mounts along: a build never goes on without its holder. Their output goes to a file; its last line is the
 * progress, its end the error.
 */
import { open } from 'node:fs/promises'
import path from 'node:path'
import { stripVTControlCharacters } from 'node:util'
import { runCommand } from '../run-command.ts'
import type { Build } from './build.ts'
import { TOOL_ENV } from './tools.ts'

const POLL_MS = 500
const TAIL_BYTES = 8192
const LINES_IN_ERROR = 8
const PROGRESS_MAX_CHARS = 160
/** An image may come over a slow line; a build that hangs for ever is ended all the same. */
const DEFAULT_TIMEOUT_MS = 3_600_000

const DIES_WITH_US = ['--pdeathsig', 'KILL', 'unshare', '--pid', '--fork', '--kill-child', '--mount-proc', '--']
const TO_LOG = 'log=$1; shift; exec "$@" >"$log" 2>&1'

export type CommandOptions = { env?: NodeJS.ProcessEnv; timeoutMs?: number; what: string }

export async function runInBuild(
  build: Build,
  command: string,
  args: readonly string[],
  { what, env = TOOL_ENV, timeoutMs = DEFAULT_TIMEOUT_MS }: CommandOptions,
): Promise<void> {
  const log = path.join(build.folder, '.log')
  build.progress(what)
  const stopTelling = tellLastLine(log, (line) => build.progress(`${what}: ${line}`))
  try {
    const { exitCode, stderr } = await runCommand(
      'setpriv',
      [...DIES_WITH_US, 'sh', '-c', TO_LOG, 'sh', log, command, ...args],
      { env, timeoutMs, signal: build.signal },
    )
    if (exitCode === 0) return
    const said = (await readLastLines(log, LINES_IN_ERROR)) || stderr.trim() || 'it said nothing'
    throw new Error(`${what}: ${command} ended with exit code ${exitCode}: ${said}`)
  } finally {
    stopTelling()
  }
}

function tellLastLine(log: string, tell: (line: string) => void): () => void {
  let last = ''
  let isOver = false
  const timer = setInterval(async () => {
    const line = (await readLastLines(log, 1)).slice(0, PROGRESS_MAX_CHARS)
    if (isOver || line === '' || line === last) return
    last = line
    tell(line)
  }, POLL_MS)
  return () => {
    isOver = true
    clearInterval(timer)
  }
}

/** Lines end with a carriage return too where a program draws a progress bar. Empty when it cannot be read. */
async function readLastLines(file: string, count: number): Promise<string> {
  const text = await readTail(file).catch(() => '') // not there before the command has started
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
