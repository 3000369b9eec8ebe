/** Starts the process with a host's network (main.ts) and sends it tasks. */
import { startChild } from '../child.ts'
import type { Fixture } from '../row.ts'
import { Skip } from '../skip.ts'
import type { Tasks } from './tasks.ts'

type Task = Exclude<keyof Tasks, 'close'>
export type HostNetwork = <T extends Task>(
  task: T,
  ...params: Parameters<Tasks[T]>
) => Promise<Awaited<ReturnType<Tasks[T]>>>

/** Removing a thousand namespaces is slow. */
const STOP_LIMIT_MS = 120_000

export const hostNetwork: Fixture<HostNetwork> = async (run) => {
  if (process.getuid?.() !== 0) throw new Skip('network namespaces need root')
  run.report('  starting a host network in private namespaces')
  const child = await startChild('bench/src/net/main.ts', { hasPrivateMounts: true, stopLimitMs: STOP_LIMIT_MS })
  run.defer(child.stop)
  return async (task, ...params) => {
    run.signal.throwIfAborted()
    const response = await child.request<{ value: never } | { error: string }>({ task, params: params[0] })
    if ('error' in response) throw new Error(`${task}: ${response.error}`)
    return response.value
  }
}
