/**
 * Starts a program, in practice QEMU, that holds the cable of a slot's tap and otherwise knows nothing of the network:
 * it runs in the host's namespace, as its own user, in its own session, and outlives netd and the host agent.
 */
import { type ChildProcess, spawn } from 'node:child_process'
import { closeSync, openSync, writeFileSync } from 'node:fs'
import { netnsPath, TAP } from '../names.ts'
import type { ProgramExit, SpawnSettings } from '../netd-protocol.ts'
import type { Kernel } from './kernel.ts'
import { keepDescriptorsFromChildren, keepPagesSmall } from './libc.ts'
import { openSealed } from './sealed.ts'
import { attachTap } from './tap.ts'

export async function spawnIn(
  kernel: Kernel,
  settings: SpawnSettings,
  onExit: (exit: ProgramExit) => void,
): Promise<{ pid: number }> {
  const child = start(kernel, settings)
  const { promise: started, resolve, reject } = Promise.withResolvers<void>()
  child.once('spawn', resolve)
  child.once('error', (error) =>
    reject(new Error(`could not start ${settings.command}: ${error.message}`, { cause: error })),
  )
  await started
  const pid = child.pid! // it has started
  child.once('exit', (code, signal) => onExit({ pid, code, signal }))
  // Its life is not a reason for netd to live.
  child.unref()
  try {
    for (const path of settings.cgroupProcs) writeFileSync(path, `${pid}`)
  } catch (error) {
    child.kill('SIGKILL')
    throw new Error(`could not put ${settings.command} into its control groups`, { cause: error })
  }
  return { pid }
}

/** Our copies of the descriptors are closed when this returns: the program's end of the cable is the only one. */
function start(kernel: Kernel, settings: SpawnSettings): ChildProcess {
  const opened: number[] = []
  const open = (fd: number): number => {
    opened.push(fd)
    return fd
  }
  const append = (path: string): number => open(openSync(path, 'a', 0o600))
  try {
    const tap = open(kernel.host.enter(netnsPath(kernel.instance, settings.slot), () => attachTap(TAP)))
    const stdout = settings.stdoutPath === undefined ? 'ignore' : append(settings.stdoutPath)
    const stderr = append(settings.stderrPath)
    const stdio: (number | 'ignore')[] = ['ignore', stdout, stderr, tap]
    for (const { fd, path, flags } of settings.files ?? []) {
      while (stdio.length <= fd) stdio.push('ignore')
      stdio[fd] = flags === 'sealed' ? openSealed(path) : open(openSync(path, flags))
    }
    // libnftables opens sockets that would pass to every child.
    keepDescriptorsFromChildren()
    keepPagesSmall()
    return spawn(settings.command, settings.args, {
      uid: settings.uid,
      gid: settings.gid,
      env: settings.env,
      cwd: settings.cwd ?? '/',
      detached: true,
      stdio,
    })
  } finally {
    for (const fd of opened) closeSync(fd)
  }
}
