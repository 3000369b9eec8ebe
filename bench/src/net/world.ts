/** The process with a host's network in it (main.ts), as rows ask it. */
import { startChild } from '../child.ts'
import type { Fixture } from '../row.ts'
import { Skip } from '../skip.ts'
import type { Tasks } from './tasks.ts'

type Task = Exclude<keyof Tasks, 'close'>
export type NetWorld = <T extends Task>(
  task: T,
  ...params: Parameters<Tasks[T]>
) => Promise<Awaited<ReturnType<Tasks[T]>>>

/** A thousand namespaces take their time to go. */
const STOP_LIMIT_MS = 120_000

export const netWorld: Fixture<NetWorld> = async (run) => {
  if (process.getuid?.() !== 0) throw new Skip('network namespaces need root')
  run.say('  starting a host with its network, in namespaces of its own')
  const child = await startChild('bench/src/net/main.ts', { asRoot: true, stopLimitMs: STOP_LIMIT_MS })
  run.defer(child.stop)
  return async (task, ...params) => {
    run.signal.throwIfAborted()
    const answer = await child.ask<{ value: never } | { error: string }>({ task, params: params[0] })
    if ('error' in answer) throw new Error(`${task}: ${answer.error}`)
    return answer.value
  }
}
