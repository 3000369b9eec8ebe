/**
 * The processor time of a Warren: of the process that started it and of all processes below it, including those that have
 * ended. Other work on the machine hardly changes it, unlike the time on the clock.
 */
import { readdirSync, readFileSync } from 'node:fs'
import path from 'node:path'

/** What the kernel counts with on every architecture that Linux runs on. */
const TICKS_PER_SECOND = 100

/** In milliseconds, since the start. */
export function readWarrenCpuMs(dataDir: string): number {
  const { pid } = JSON.parse(readFileSync(path.join(dataDir, 'instance.json'), 'utf8')) as { pid: number }
  const processes = listProcesses()
  const tree = new Set([pid])
  // A Set can grow while it is iterated: every process that is added has its children looked for.
  for (const parent of tree) for (const one of processes) if (one.parent === parent) tree.add(one.pid)
  return sum(processes.filter((one) => tree.has(one.pid)).map((one) => one.ownMs + one.endedChildrenMs))
}

/** Of the programs that this process has started and that have ended. */
export const readEndedChildrenCpuMs = (): number => parseStat(readFileSync('/proc/self/stat', 'utf8')).endedChildrenMs

type Process = { pid: number; parent: number; ownMs: number; endedChildrenMs: number }

function listProcesses(): Process[] {
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .flatMap((name) => {
      try {
        return [parseStat(readFileSync(`/proc/${name}/stat`, 'utf8'))]
      } catch {
        return [] // It has ended.
      }
    })
}

/** proc_pid_stat(5). The name of the program may contain spaces and parentheses. */
export function parseStat(stat: string): Process {
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
  const ms = (field: number) => (Number(fields[field - 3]) * 1000) / TICKS_PER_SECOND
  return {
    pid: Number.parseInt(stat, 10),
    parent: Number(fields[4 - 3]),
    ownMs: ms(14) + ms(15),
    endedChildrenMs: ms(16) + ms(17),
  }
}

const sum = (values: readonly number[]): number => values.reduce((total, value) => total + value, 0)
