/**
 * Commands of the host, run to their end. What is to live on is started elsewhere: netd by `net/netd-client.ts`, and
 * QEMU by netd (`net/spawn.ts`). Nobody else uses node:child_process.
 *
 * The child leads its own process group, and the whole group is killed when the time is up, the signal fires or the
 * output passes its bound, so no helper of the command lives on. An exit code is always a real wait status: a command
 * that could not start, or that was killed from here, is an error and has none.
 */
import { type ChildProcess, spawn } from 'node:child_process'
import { constants } from 'node:os'

export type RunOptions = {
  /** Written to stdin, which is then closed; without it stdin is empty. */
  input?: string | Uint8Array
  timeoutMs?: number
  /** The whole environment of the command; this process's own when absent. */
  env?: NodeJS.ProcessEnv
  signal?: AbortSignal
}

export type RunResult = {
  stdout: string
  stderr: string
  /** 128+n after signal n, as in a shell. */
  exitCode: number
}

/** Half an answer is worse than none: a command that prints more than this on stdout is killed. */
export const STDOUT_MAX_BYTES = 16 * 1024 ** 2
/** Of stderr the end is kept: what went wrong stands last. */
export const STDERR_MAX_BYTES = 64 * 1024
const STDERR_LINES_IN_ERROR = 5
const DEFAULT_TIMEOUT_MS = 60_000

/** Gives the exit code whatever it is; throws when the command did not start or did not end by itself. */
export async function run(command: string, args: readonly string[], options: RunOptions = {}): Promise<RunResult> {
  const { input, timeoutMs = DEFAULT_TIMEOUT_MS, env = process.env, signal } = options
  const aborted = () => new Error(`${command} was aborted`, { cause: signal?.reason })
  if (signal?.aborted) throw aborted()

  const child = spawn(command, args, {
    env,
    detached: true,
    stdio: [input === undefined ? 'ignore' : 'pipe', 'pipe', 'pipe'],
  })
  const { promise, resolve, reject } = Promise.withResolvers<RunResult>()
  let failure: Error | undefined
  const giveUp = (error: Error) => {
    failure ??= error
    killGroup(child)
    if (hasExited(child)) reject(failure)
  }
  const output = collectOutput(child, () => giveUp(new Error(`${command} printed more than ${STDOUT_MAX_BYTES} bytes`)))
  const timer = setTimeout(() => giveUp(new Error(`${command} timed out after ${timeoutMs} ms`)), timeoutMs)
  const onAbort = () => giveUp(aborted())
  signal?.addEventListener('abort', onAbort)

  child.once('error', (error) => reject(new Error(`could not start ${command}: ${error.message}`, { cause: error })))
  // A helper that left the group can hold the pipes open for ever: after a kill the exit is enough.
  child.once('exit', () => failure && reject(failure))
  child.once('close', (code, signalName) => {
    if (failure) return reject(failure)
    resolve({ ...output(), exitCode: code ?? 128 + constants.signals[signalName!] }) // without a code there is a signal
  })
  // A command may end without reading its input (EPIPE); its exit code tells whether that matters.
  child.stdin?.on('error', () => {})
  child.stdin?.end(input)

  try {
    return await promise
  } finally {
    clearTimeout(timer)
    signal?.removeEventListener('abort', onAbort)
    for (const stream of child.stdio) stream?.destroy()
  }
}

/** For commands that must succeed: any other exit code than 0 is an error with the end of stderr. */
export async function runOrThrow(
  command: string,
  args: readonly string[],
  options: RunOptions = {},
): Promise<RunResult> {
  const result = await run(command, args, options)
  if (result.exitCode === 0) return result
  const said = result.stderr.trim().split('\n').slice(-STDERR_LINES_IN_ERROR).join('\n') || 'nothing on stderr'
  throw new Error(`${[command, ...args].join(' ')} failed with exit code ${result.exitCode}: ${said}`)
}

function collectOutput(child: ChildProcess, onTooMuch: () => void): () => { stdout: string; stderr: string } {
  const stdout: Buffer[] = []
  let stdoutBytes = 0
  let stderr = Buffer.alloc(0)
  child.stdout?.on('data', (chunk: Buffer) => {
    stdoutBytes += chunk.length
    if (stdoutBytes > STDOUT_MAX_BYTES) return onTooMuch()
    stdout.push(chunk)
  })
  child.stderr?.on('data', (chunk: Buffer) => {
    stderr = Buffer.concat([stderr, chunk]).subarray(-STDERR_MAX_BYTES)
  })
  return () => ({ stdout: Buffer.concat(stdout).toString(), stderr: stderr.toString() })
}

const hasExited = (child: ChildProcess): boolean => child.exitCode !== null || child.signalCode !== null

function killGroup(child: ChildProcess): void {
  if (child.pid === undefined) return
  try {
    process.kill(-child.pid, 'SIGKILL')
  } catch (error) {
    // Nobody is left in the group: it ended by itself a moment ago.
    if ((error as NodeJS.ErrnoException).code !== 'ESRCH') throw error
  }
}
