/** The programs that jails started. They are children of the launcher that Node knows nothing about. */
import { constants } from 'node:os'
import { hasCode } from '../../ffi/system-call.ts'
import { collectExit } from '../../ffi/wait.ts'
import type { ProgramExit } from '../launcher-protocol.ts'

type OnExit = (exit: ProgramExit) => void

const running = new Map<number, OnExit>()

/** Reports the exit of a program, also if it has exited already. */
export function watchProgram(pid: number, onExit: OnExit): void {
  if (running.size === 0) process.on('SIGCHLD', collectExits)
  running.set(pid, onExit)
  collectExits()
}

function collectExits(): void {
  for (const [pid, onExit] of running) {
    const exit = findExit(pid)
    if (!exit) continue
    running.delete(pid)
    onExit({ pid, ...exit })
  }
  if (running.size === 0) process.off('SIGCHLD', collectExits)
}

type Exit = Pick<ProgramExit, 'code' | 'signal'>

function findExit(pid: number): Exit | undefined {
  try {
    const status = collectExit(pid)
    return status === undefined ? undefined : decodeStatus(status)
  } catch (error) {
    if (hasCode(error, 'ECHILD')) return { code: null, signal: null } // It is gone, however it ended.
    throw error
  }
}

/** The lowest seven bits are the signal that ended the program, the next byte its exit code. */
function decodeStatus(status: number): Exit {
  const number = status & 0x7f
  if (number === 0) return { code: (status >> 8) & 0xff, signal: null }
  const name = Object.entries(constants.signals).find(([, value]) => value === number)?.[0]
  return { code: null, signal: (name ?? 'SIGKILL') as NodeJS.Signals } // Only real-time signals have no name.
}
