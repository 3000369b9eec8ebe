/** Starting and closing a process that ends when its channel to the host agent closes (child-channel.ts). */
import { type ChildProcess, fork } from 'node:child_process'

const CLOSE_LIMIT_MS = 2_000

/** In its own session, so that signals from the terminal do not reach it. */
export const forkChild = (program: string, args: string[]): ChildProcess =>
  fork(program, args, { detached: true, stdio: ['ignore', 'inherit', 'inherit', 'ipc'] })

/** Settles when the process has exited. One that does not exit in time is killed. */
export async function closeChild(child: ChildProcess, limitMs = CLOSE_LIMIT_MS): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return
  const { promise: exited, resolve } = Promise.withResolvers<void>()
  child.once('exit', () => resolve())
  if (child.connected) child.disconnect()
  const timer = setTimeout(() => child.kill('SIGKILL'), limitMs)
  await exited
  clearTimeout(timer)
}

export const describeExit = (code: number | null, signal: NodeJS.Signals | null): string =>
  signal ?? `exit code ${code}`
