/**
 * Runs a command and streams its output, one JSON object per line (docs/api.md#exec).
 *
 * The response head is sent when the command has started, so a failure before that is an ordinary error response. A
 * slow reader slows the command down; a reader that disconnects has the command killed. If the guest is lost meanwhile,
 * the connection is reset: the exit code is unknown, and none is invented.
 */
import { EXEC_CHUNK_MAX_BYTES, EXEC_HEARTBEAT_MS, type ExecBody, type ExecFrame, Utf8Chunker } from '@warren/protocol'
import type { FastifyReply } from 'fastify'
import type { SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { callerDisconnected } from '../http/caller-disconnected.ts'
import { type NdjsonReply, openNdjson } from '../http/ndjson-reply.ts'
import { ensureRunning } from './ensure-running.ts'
import { checkCommand, type ExecEvent, limitNotice, runCommand } from './exec.ts'
import { withGuest } from './with-guest.ts'

export async function execStream(deps: Deps, sandbox: SandboxRow, body: ExecBody, reply: FastifyReply): Promise<void> {
  checkCommand(sandbox, body)
  const disconnected = callerDisconnected(reply)
  const running = await ensureRunning(deps, sandbox, disconnected)
  await withGuest(
    deps,
    running,
    async () => {
      const events = runCommand(deps, running, body, disconnected)
      const first = await events.next()
      if (first.done) throw new Error('guest stream closed before an exit event')
      const lines = openNdjson<ExecFrame>(reply)
      const heartbeat = setInterval(() => lines.writeIfIdle({ hb: true }), EXEC_HEARTBEAT_MS)
      try {
        await writeEvents(deps, lines, first.value, events)
        lines.end()
      } catch (error) {
        lines.abort()
        if (!disconnected.aborted) deps.log.warn({ err: error, sandbox: sandbox.id }, 'exec stream was interrupted')
      } finally {
        clearInterval(heartbeat)
        await events.return()
      }
    },
    disconnected,
  )
}

async function writeEvents(
  deps: Deps,
  lines: NdjsonReply<ExecFrame>,
  first: ExecEvent,
  events: AsyncGenerator<ExecEvent>,
) {
  const chunkers = { stdout: new Utf8Chunker(EXEC_CHUNK_MAX_BYTES), stderr: new Utf8Chunker(EXEC_CHUNK_MAX_BYTES) }
  const writeChunks = async (stream: 'stdout' | 'stderr', chunks: string[]) => {
    for (const text of chunks) await lines.write(stream === 'stdout' ? { stdout: text } : { stderr: text })
  }

  const writeEvent = async (event: ExecEvent): Promise<void> => {
    if (event.type === 'started') return
    if (event.type === 'stdout' || event.type === 'stderr') {
      return writeChunks(event.type, chunkers[event.type].push(event.bytes))
    }
    if (event.type === 'error') await lines.write({ error: event.message })
    await writeChunks('stdout', chunkers.stdout.end())
    await writeChunks('stderr', chunkers.stderr.end())
    if (event.type === 'exit' && event.timedOut) await lines.write({ stderr: `${limitNotice(deps)}\n` })
    await lines.write({ exit_code: event.exitCode })
  }

  await writeEvent(first)
  for await (const event of events) await writeEvent(event)
}
