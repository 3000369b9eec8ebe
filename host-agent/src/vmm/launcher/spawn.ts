/**
 * Starts a program, in practice QEMU, that holds the descriptor of a slot's tap. The program runs in the host's network
 * namespace, as its own user and in its own session, and outlives the launcher and the host agent.
 */
import { type ChildProcess, spawn } from 'node:child_process'
import { closeSync, openSync, writeFileSync } from 'node:fs'
import type { HostNamespace } from '../../ffi/network-namespace.ts'
import { closeDescriptorsOnExec, disableHugePages } from '../../ffi/process.ts'
import { attachTap } from '../../ffi/tap.ts'
import { netnsPath, TAP } from '../../net/names.ts'
import type { LaunchRequest, ProgramExit } from '../launcher-protocol.ts'
import { openSealedCopy } from './sealed-memory.ts'

export type LauncherContext = { instance: string; host: HostNamespace }

export async function spawnProgram(
  context: LauncherContext,
  request: LaunchRequest,
  onExit: (exit: ProgramExit) => void,
): Promise<{ pid: number }> {
  const child = start(context, request)
  const { promise: started, resolve, reject } = Promise.withResolvers<void>()
  child.once('spawn', resolve)
  child.once('error', (error) =>
    reject(new Error(`failed to start ${request.command}: ${error.message}`, { cause: error })),
  )
  await started
  const pid = child.pid! // Set, because the program has started.
  child.once('exit', (code, signal) => onExit({ pid, code, signal }))
  // A running program does not keep the launcher alive.
  child.unref()
  try {
    for (const path of request.cgroupProcs) writeFileSync(path, `${pid}`)
  } catch (error) {
    child.kill('SIGKILL')
    throw new Error(`failed to move ${request.command} into its cgroups`, { cause: error })
  }
  return { pid }
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
    const tap = track(host.enter(netnsPath(instance, request.slot), () => attachTap(TAP)))
    const stdout = request.stdoutPath === undefined ? 'ignore' : append(request.stdoutPath)
    const stderr = append(request.stderrPath)
    const stdio: (number | 'ignore')[] = ['ignore', stdout, stderr, tap]
    for (const { fd, path, flags } of request.files ?? []) {
      while (stdio.length <= fd) stdio.push('ignore')
      stdio[fd] = flags === 'sealed' ? openSealedCopy(path) : track(openSync(path, flags))
    }
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
