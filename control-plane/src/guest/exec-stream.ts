/**
 * Exec as it happens: one JSON object a line (wire 4).
 *
 * The head of the answer leaves when the command has started, so a failure before that is an ordinary error. A reader
 * that is slow slows the command down, through every stage; one that hangs up has it killed. If the guest is lost in
 * the middle the connection is cut: there is no exit code to tell, and none is made up.
 */
import { EXEC_CHUNK_MAX_BYTES, EXEC_HEARTBEAT_MS, type ExecBody, type ExecFrame, Utf8Chunker } from '@warren/protocol'
import type { FastifyReply } from 'fastify'
import type { SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { callerDisconnected } from '../http/caller-disconnected.ts'
import { type NdjsonReply, openNdjson } from '../http/ndjson-reply.ts'
import { ensureRunning } from './ensure-running.ts'
import { checkCommand, type ExecEvent, limitNotice, runCommand } from './exec.ts'
import { withGuest } from './failure.ts'

export async function execStream(deps: Deps, sandbox: SandboxRow, body: ExecBody, reply: FastifyReply): Promise<void> {
  checkCommand(sandbox, body)
  const gone = callerDisconnected(reply)
  const running = await ensureRunning(deps, sandbox, gone)
  await withGuest(
    deps,
    running,
    async () => {
      const events = runCommand(deps, running, body, gone)
      const first = await events.next()
      if (first.done) throw new Error('the command ended without an end')
      const lines = openNdjson<ExecFrame>(reply)
      const beat = setInterval(() => lines.writeIfIdle({ hb: true }), EXEC_HEARTBEAT_MS)
      try {
        await tell(deps, lines, first.value, events)
        lines.end()
      } catch (error) {
        lines.abort()
        if (!gone.aborted) deps.log.warn({ err: error, sandbox: sandbox.id }, 'an exec stream was cut')
      } finally {
        clearInterval(beat)
        await events.return()
      }
    },
    gone,
  )
}

async function tell(deps: Deps, lines: NdjsonReply<ExecFrame>, first: ExecEvent, events: AsyncGenerator<ExecEvent>) {
  const chunkers = { stdout: new Utf8Chunker(EXEC_CHUNK_MAX_BYTES), stderr: new Utf8Chunker(EXEC_CHUNK_MAX_BYTES) }
  const say = async (stream: 'stdout' | 'stderr', chunks: string[]) => {
    for (const text of chunks) await lines.write(stream === 'stdout' ? { stdout: text } : { stderr: text })
  }

  const tellOne = async (event: ExecEvent): Promise<void> => {
    if (event.type === 'started') return
    if (event.type === 'stdout' || event.type === 'stderr') {
      return say(event.type, chunkers[event.type].push(event.bytes))
    }
    if (event.type === 'error') await lines.write({ error: event.message })
    await say('stdout', chunkers.stdout.end())
    await say('stderr', chunkers.stderr.end())
    if (event.type === 'exit' && event.timedOut) await lines.write({ stderr: `${limitNotice(deps)}\n` })
    await lines.write({ exit_code: event.exitCode })
  }

  await tellOne(first)
  for await (const event of events) await tellOne(event)
}
