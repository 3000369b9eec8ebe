/**
 * Starts a program that holds the descriptor of a slot's tap: the jail, which becomes QEMU. It outlives the launcher and
 * the host agent, in its own session. Tools that read hostile files are started in the same way, without a tap.
 */
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { closeSync, openSync } from 'node:fs'
import type { Readable } from 'node:stream'
import { text } from 'node:stream/consumers'
import type { HostNamespace } from '../../ffi/network-namespace.ts'
import { closeDescriptorsOnExec, disableHugePages } from '../../ffi/process.ts'
import { attachTap } from '../../ffi/tap.ts'
import { netnsPath, TAP } from '../../net/names.ts'
import type { LaunchRequest, ProgramExit } from '../launcher-protocol.ts'
import { watchProgram } from './jailed-programs.ts'

export type LauncherContext = { instance: string; host: HostNamespace }

export async function spawnProgram(
  context: LauncherContext,
  request: LaunchRequest,
  onExit: (exit: ProgramExit) => void,
): Promise<{ pid: number }> {
  const child = start(context, request)
  try {
    await once(child, 'spawn')
  } catch (error) {
    throw new Error(`failed to start ${request.command}: ${(error as Error).message}`, { cause: error })
  }
  // A running program does not keep the launcher alive.
  child.unref()
  if (request.reportFd !== undefined) {
    const pid = await readReport(child.stdio[request.reportFd] as Readable)
    watchProgram(pid, onExit)
    return { pid }
  }
  const pid = child.pid! // Set, because the program has started.
  child.once('exit', (code, signal) => onExit({ pid, code, signal }))
  return { pid }
}

/** Returns the pid of the jailed program. The report ends when the program runs, or when it cannot. */
async function readReport(report: Readable): Promise<number> {
  const lines = await text(report)
  const error = /^error (.*)$/m.exec(lines)?.[1]
  const pid = /^pid (\d+)$/m.exec(lines)?.[1]
  if (error !== undefined) {
    if (pid !== undefined) watchProgram(Number(pid), () => {}) // Otherwise it would stay as a zombie.
    throw new Error(`the jail ${error}`)
  }
  if (pid === undefined) throw new Error('the jail exited without a report')
  return Number(pid)
}

/** Closes the launcher's copies of the descriptors before it returns, so that the program holds the only one of the tap. */
function start({ instance, host }: LauncherContext, request: LaunchRequest): ChildProcess {
  const opened: number[] = []
  const track = (fd: number): number => {
    opened.push(fd)
    return fd
  }
  const append = (path: string): number => track(openSync(path, 'a', 0o600))
  try {
    const { slot } = request
    const tap = slot === undefined ? undefined : track(host.enter(netnsPath(instance, slot), () => attachTap(TAP)))
    const stdout = request.stdoutPath === undefined ? 'ignore' : append(request.stdoutPath)
    const stderr = append(request.stderrPath)
    const stdio: (number | 'ignore' | 'pipe')[] = ['ignore', stdout, stderr, ...(tap === undefined ? [] : [tap])]
    const pass = (fd: number, source: number | 'pipe') => {
      while (stdio.length <= fd) stdio.push('ignore')
      stdio[fd] = source
    }
    for (const { fd, path, flags } of request.files ?? []) {
      pass(fd, track(openSync(path, flags)))
    }
    if (request.reportFd !== undefined) pass(request.reportFd, 'pipe')
    // Node opens its descriptors close-on-exec, but a native library may not.
    closeDescriptorsOnExec()
    disableHugePages()
    return spawn(request.command, request.args, {
      uid: request.uid,
      gid: request.gid,
      env: request.env,
      cwd: request.cwd ?? '/',
      detached: true,
      stdio,
    })
  } finally {
    for (const fd of opened) closeSync(fd)
  }
}
