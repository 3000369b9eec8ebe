/**
 * Runs a command of the host until it exits. Long-running processes are started elsewhere: netd, the egress proxy and the
 * VMM launcher by their clients, QEMU by the launcher, and `flock` by images/lock.ts.
 *
 * The child leads its own process group. The whole group is killed on timeout, on abort and when the output is too
 * large, so no helper process of the command is left behind. An exit code is always a real wait status: a command that
 * failed to start, or that was killed from here, throws instead.
 */
import { type ChildProcess, spawn } from 'node:child_process'
import { constants } from 'node:os'

export type RunCommandOptions = {
  /** Written to stdin, which is then closed. By default stdin is empty. */
  input?: string | Uint8Array
  timeoutMs?: number
  /** The whole environment of the command. By default that of this process. */
  env?: NodeJS.ProcessEnv
  signal?: AbortSignal
}

export type RunResult = {
  stdout: string
  stderr: string
  /** 128+n if signal n ended the command, as in a shell. */
  exitCode: number
}

/** A command that prints more than this on stdout is killed, because truncated output could be misread. */
export const STDOUT_MAX_BYTES = 16 * 1024 ** 2
/** Only the end of stderr is kept: the reason of a failure is usually in the last lines. */
export const STDERR_MAX_BYTES = 64 * 1024
const STDERR_LINES_IN_ERROR = 5
const DEFAULT_TIMEOUT_MS = 60_000

/** Resolves with any exit code. Throws if the command failed to start or was killed from here. */
export async function runCommand(
  command: string,
  args: readonly string[],
  options: RunCommandOptions = {},
): Promise<RunResult> {
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

  child.once('error', (error) => reject(new Error(`failed to start ${command}: ${error.message}`, { cause: error })))
  // A helper that left the process group can hold the pipes open, so after a kill 'close' may never come.
  child.once('exit', () => failure && reject(failure))
  child.once('close', (code, signalName) => {
    if (failure) return reject(failure)
    resolve({ ...output(), exitCode: code ?? 128 + constants.signals[signalName!] }) // One of the two is always set.
  })
  // EPIPE: the command exited without reading its input. Its exit code tells whether that is an error.
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

/** Throws on any exit code except 0, with the last lines of stderr. */
export async function runCommandOrThrow(
  command: string,
  args: readonly string[],
  options: RunCommandOptions = {},
): Promise<RunResult> {
  const result = await runCommand(command, args, options)
  if (result.exitCode === 0) return result
  const stderr = result.stderr.trim().split('\n').slice(-STDERR_LINES_IN_ERROR).join('\n') || 'nothing on stderr'
  throw new Error(`${[command, ...args].join(' ')} failed with exit code ${result.exitCode}: ${stderr}`)
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
    // ESRCH: all processes of the group have exited already.
    if ((error as NodeJS.ErrnoException).code !== 'ESRCH') throw error
  }
}
