/**
 * Streams the output of a process to a reader, one JSON object per line. Back-pressure reaches the guest: a slow reader
 * blocks no other reader, and one that falls behind the journal receives an error line. After 3 s without output a
 * heartbeat is sent, because clients give up after 5 s of silence.
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
  const disconnected = callerDisconnected(reply)
  const output = await openProcessOutput(deps, sandbox, processId, after, disconnected)
  const lines = openNdjson<ProcessFrame>(reply)
  const heartbeat = setTimeout(() => {
    lines.writeIfIdle({ type: 'heartbeat' })
    heartbeat.refresh()
  }, PROCESS_HEARTBEAT_MS)
  try {
    for await (const line of output) {
      await lines.write(line)
      heartbeat.refresh()
    }
    lines.end()
  } catch (error) {
    lines.abort()
    if (!disconnected.aborted)
      deps.log.warn({ err: error, sandbox: sandbox.id }, 'process output stream was interrupted')
  } finally {
    clearTimeout(heartbeat)
    await output.return()
  }
}
