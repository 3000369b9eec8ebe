/**
 * Connect: the output of a process to a reader, one JSON object a line. The reader's pace is the guest's: a slow one
 * holds up nobody, and one that falls behind the journal is told so. After 3 s without a line comes a heartbeat, for
 * readers that give up after 5.
 */
import { PROCESS_HEARTBEAT_MS, type ProcessFrame } from '@warren/protocol'
import type { FastifyReply } from 'fastify'
import type { SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { callerDisconnected } from '../http/caller-disconnected.ts'
import { openNdjson } from '../http/ndjson-reply.ts'
import { openProcessOutput } from './process-output.ts'

export async function connectProcess(
  deps: Deps,
  sandbox: SandboxRow,
  processId: string,
  after: number,
  reply: FastifyReply,
): Promise<void> {
  const gone = callerDisconnected(reply)
  const output = await openProcessOutput(deps, sandbox, processId, after, gone)
  const lines = openNdjson<ProcessFrame>(reply)
  const beat = setTimeout(() => {
    lines.writeIfIdle({ type: 'heartbeat' })
    beat.refresh()
  }, PROCESS_HEARTBEAT_MS)
  try {
    for await (const line of output) {
      await lines.write(line)
      beat.refresh()
    }
    lines.end()
  } catch (error) {
    lines.abort()
    if (!gone.aborted) deps.log.warn({ err: error, sandbox: sandbox.id }, 'a connect stream was cut')
  } finally {
    clearTimeout(beat)
    await output.return()
  }
}
