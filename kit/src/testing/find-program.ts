/** The process that a test means when it kills or measures a service. */
import { readFileSync } from 'node:fs'

/** The program that a jail has started (jail/src/service.rs), by way of its init. Any other process is returned as it is. */
export function findProgram(pid: number): number {
  if (readFileSync(`/proc/${pid}/comm`, 'utf8') !== 'jail\n') return pid
  const [child] = readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8').trim().split(' ')
  if (!child) throw new Error(`the jail with pid ${pid} has no program yet`)
  return findProgram(Number(child))
}
