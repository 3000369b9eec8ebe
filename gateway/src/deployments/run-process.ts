/** Runs a program in a sandbox to its end, with its output in the log. */
import { setTimeout as delay } from 'node:timers/promises'
import type { ProcessCreateBody, ProcessFrame } from '@warren/protocol'
import { isTransient } from '../control-plane/client.ts'
import { ControlPlaneError } from '../control-plane/error.ts'
import type { LogSource } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import type { LogWriter } from '../logs/writer.ts'
import type { Work } from './work.ts'

export type Exit = { code: number | null; signal: string | undefined }

const RECONNECT_MS = 500

export const isSuccess = ({ code }: Exit): boolean => code === 0
export const describeExit = ({ code, signal }: Exit): string =>
  signal === undefined ? `exited with ${code}` : `was ended by ${signal}`

export async function runProcess(
  { deps, log, signal }: Work,
  sandboxId: string,
  body: ProcessCreateBody,
  source: LogSource,
): Promise<Exit> {
  const { process_id } = await deps.controlPlane.startProcess(sandboxId, body, signal)
  return followProcess(deps, log, { sandboxId, processId: process_id, source }, signal)
}

type Followed = {
  sandboxId: string
  processId: string
  source: LogSource
  after?: number
  /** The row in which progress is stored, for output that a later process continues with. */
  sandboxName?: string
}

/** Reads the output until the program ends. A connection that breaks is opened again where it ended. */
export async function followProcess(
  { controlPlane }: Deps,
  log: LogWriter,
  { sandboxId, processId, source, after = 0, sandboxName }: Followed,
  signal: AbortSignal,
): Promise<Exit> {
  let seq = after
  for (;;) {
    try {
      for await (const frame of controlPlane.connectProcess(sandboxId, processId, seq, signal)) {
        if (frame.type === 'data') {
          seq = frame.seq
          const stream = frame.stream === 'stderr' ? 'stderr' : 'stdout'
          const progress = sandboxName === undefined ? undefined : { sandbox: sandboxName, seq }
          log.output(source, stream, Buffer.from(frame.data_base64, 'base64'), progress)
          await log.waitForRoom(signal)
        } else if (frame.type === 'exit') {
          log.endOutput(source)
          return exitOf(frame)
        } else if (frame.type === 'error') {
          if (frame.oldest_available_seq === undefined) throw new ControlPlaneError(404, frame.error)
          seq = skipLost(log, frame.oldest_available_seq)
        }
      }
    } catch (error) {
      signal.throwIfAborted()
      if (error instanceof ControlPlaneError && error.status === 410) {
        const view = await controlPlane.getProcess(sandboxId, processId, signal)
        seq = skipLost(log, view.output.oldest_seq)
      } else if (!isTransient(error) && !isBrokenConnection(error)) throw error
    }
    signal.throwIfAborted()
    await delay(RECONNECT_MS, undefined, { signal })
  }
}

const exitOf = (frame: Extract<ProcessFrame, { type: 'exit' }>): Exit =>
  'exit_code' in frame ? { code: frame.exit_code, signal: undefined } : { code: null, signal: frame.signal }

/** The program writes faster than it is read, and its journal has dropped some of it. */
function skipLost(log: LogWriter, oldestSeq: number): number {
  log.note('some output was lost: the program writes more than is kept')
  return oldestSeq - 1
}

/** fetch reports a connection that ends within a body as a TypeError. */
const isBrokenConnection = (error: unknown): boolean => error instanceof TypeError
