/** Waits for children that Node does not know: programs that a child of this process started as its siblings. */
import { bindSystemCall } from './system-call.ts'

const WNOHANG = 1

const waitpid = bindSystemCall('int waitpid(int pid, _Out_ int *status, int options)')

/** Status of a child that has exited, as waitpid(2) encodes it. Undefined while it runs. */
export function collectExit(pid: number): number | undefined {
  const status = [0]
  return waitpid(pid, status, WNOHANG) === pid ? status[0] : undefined
}
