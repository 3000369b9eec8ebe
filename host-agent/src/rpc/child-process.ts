/** Starting and closing a process that ends when its channel to the host agent closes (child-channel.ts). */
import { type ChildProcess, fork } from 'node:child_process'
import { type CapableProcess, withCapabilities } from '@warren/kit/capabilities'

const CLOSE_LIMIT_MS = 2_000

/** In its own session, so that signals from the terminal do not reach it. */
export function forkChild(name: CapableProcess, program: string, args: string[]): ChildProcess {
  const [execPath, execArgv] = withCapabilities(name, program, process.execPath, process.execArgv)
  return fork(program, args, { execPath, execArgv, detached: true, stdio: ['ignore', 'inherit', 'inherit', 'ipc'] })
}

export const hasExited = (child: ChildProcess): boolean => child.exitCode !== null || child.signalCode !== null

/** Settles when the process has exited. `close` closes its channel. One that does not exit in time is killed. */
export async function closeChild(
  child: ChildProcess,
  limitMs = CLOSE_LIMIT_MS,
  close = () => {
    if (child.connected) child.disconnect()
  },
): Promise<void> {
  if (hasExited(child)) return
  const { promise: exited, resolve } = Promise.withResolvers<void>()
  child.once('exit', () => resolve())
  close()
  const timer = setTimeout(() => child.kill('SIGKILL'), limitMs)
  await exited
  clearTimeout(timer)
}

export const describeExit = (code: number | null, signal: NodeJS.Signals | null): string =>
  signal ?? `exit code ${code}`
