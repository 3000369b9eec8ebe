/**
 * An exclusive lock on a file, among all processes of the machine and all callers in one process.
 *
 * A child, `flock` of util-linux, holds the lock until its stdin closes. The kernel closes our end of that pipe when this
 * process exits for any reason, kill -9 included, so a lock never outlives its holder for more than a moment.
 */
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { open } from 'node:fs/promises'
import type { Socket } from 'node:net'

/** The exit code of `flock --nonblock` when another process holds the lock. */
const CONFLICT_EXIT_CODE = 99
/**
 * Reports that the lock is held, then waits for the end of stdin. Ignores signals that a service manager sends to all
 * processes of a service: this process is still working when it gets them, and needs the lock until it is done.
 */
const HOLD = 'trap "" HUP INT TERM; echo; exec cat >/dev/null'

export type Lock = { release(): Promise<void> }

/** Undefined when another caller holds the lock. */
export async function tryLock(file: string): Promise<Lock | undefined> {
  return acquire(file, ['--nonblock', '--conflict-exit-code', `${CONFLICT_EXIT_CODE}`])
}

/** Waits for the lock. `onWait` is called once if another caller holds it. */
export async function lock(file: string, onWait: () => void, signal?: AbortSignal): Promise<Lock> {
  signal?.throwIfAborted()
  const free = await tryLock(file)
  if (free) return free
  onWait()
  const held = await acquire(file, [], signal)
  if (held) return held
  throw new Error(`failed to lock ${file}: flock reported a conflict although it should wait`)
}

async function acquire(file: string, options: string[], signal?: AbortSignal): Promise<Lock | undefined> {
  // flock would create the file readable by everyone.
  await (await open(file, 'a', 0o600)).close()
  // Directly before the listener is added: an abort before that would not be noticed.
  signal?.throwIfAborted()
  // With --no-fork flock becomes the shell, which becomes cat: there is one process to end, and it has the lock.
  const child = spawn('flock', ['--no-fork', ...options, file, 'sh', '-c', HOLD], {
    stdio: ['pipe', 'pipe', 'pipe'],
    // In its own session: Ctrl-C in a terminal must not release the lock before this process is done.
    detached: true,
  })
  const kill = () => child.kill('SIGKILL')
  signal?.addEventListener('abort', kill, { once: true })
  try {
    const outcome = await waitForOutcome(child)
    signal?.throwIfAborted()
    if (outcome === 'locked') {
      unref(child)
      return { release: () => release(child) }
    }
    if (outcome.code === CONFLICT_EXIT_CODE) return undefined
    throw new Error(`failed to lock ${file}: ${outcome.stderr.trim() || `flock ended with code ${outcome.code}`}`)
  } finally {
    signal?.removeEventListener('abort', kill)
  }
}

async function waitForOutcome(child: ChildProcess): Promise<'locked' | { code: number | null; stderr: string }> {
  const { promise, resolve, reject } = Promise.withResolvers<'locked' | { code: number | null; stderr: string }>()
  let stderr = ''
  child.stderr!.on('data', (chunk) => {
    stderr += chunk
  })
  child.stdout!.once('data', () => resolve('locked'))
  child.once('error', (error) => reject(new Error('failed to start flock', { cause: error })))
  child.once('close', (code) => resolve({ code, stderr }))
  return promise
}

/** A held lock does not keep this process alive. */
function unref(child: ChildProcess): void {
  child.unref()
  for (const stream of child.stdio) (stream as Socket | null)?.unref()
}

async function release(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return
  const exited = once(child, 'exit')
  child.ref()
  child.stdin!.end()
  await exited
}
