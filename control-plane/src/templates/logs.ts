/**
 * Streams the log of a build to a reader, one JSON object per line, until the build has ended. The log is on the host of
 * the build and is read from there as fast as the reader takes it, so a slow reader loses nothing and holds no memory.
 *
 * Each round reads the row first and the log second. Once the row says that the build has ended, the log that is read
 * afterwards is complete. A build that failed without its host, such as one that could not be started, has no line about it in
 * the log of the host; its reason is added as the last line.
 */
import { setTimeout as delay } from 'node:timers/promises'
import { upstreamUnavailable } from '@warren/kit/failure'
import type {
  HostBuildLog,
  HostBuildLogLine,
  TemplateLogFrame,
  TemplateLogLine,
  TemplateLogsQuery,
} from '@warren/protocol'
import type { FastifyReply } from 'fastify'
import type { TemplateRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { HostError, statusReason } from '../hosts/host-error.ts'
import { callerDisconnected } from '../http/caller-disconnected.ts'
import { openNdjson } from '../http/ndjson-reply.ts'
import { renderTime } from '../sandboxes/view.ts'
import { getTemplate } from './queries.ts'

/** How long one request to the host waits for output. The row is read again after it. */
const WAIT_MS = 10_000
/** Between requests that return nothing. The host waits for output only while the attempt runs there. */
const POLL_MS = 250

export async function streamLogs(
  deps: Deps,
  userId: string,
  idOrName: string,
  query: TemplateLogsQuery,
  reply: FastifyReply,
): Promise<void> {
  const template = await getTemplate(deps.db, userId, idOrName)
  const disconnected = callerDisconnected(reply)
  await checkHost(deps, template, disconnected)
  const lines = openNdjson<TemplateLogFrame>(reply)
  try {
    for await (const frame of readFrames(deps, template.id, query, disconnected)) await lines.write(frame)
    lines.end()
  } catch (error) {
    lines.abort()
    if (!disconnected.aborted) deps.log.warn({ err: error, template: template.id }, 'log of a build was interrupted')
  }
}

/** A host that is away is an ordinary error only before the first line. */
async function checkHost(deps: Deps, { id, host_id, attempt }: TemplateRow, signal: AbortSignal): Promise<void> {
  if (attempt === 0) return
  try {
    await (await deps.hosts.get(host_id)).getBuild(id, signal)
  } catch (error) {
    if (!(error instanceof HostError)) throw error
    if (error.code === 'not_found') return
    throw upstreamUnavailable(`the log cannot be read: ${statusReason(error)}`, { cause: error })
  }
}

async function* readFrames(
  deps: Deps,
  id: string,
  { after = 0, attempt = 0, follow = false }: TemplateLogsQuery,
  signal: AbortSignal,
): AsyncGenerator<TemplateLogFrame, void> {
  // Begins with the last line that the reader has: the reason of a failure is added only after a line that exists.
  let number = Math.max(0, after - 1)
  let last: HostBuildLogLine | undefined
  for (;;) {
    const row = await deps.db.selectFrom('templates').selectAll().where('id', '=', id).executeTakeFirstOrThrow()
    const isDeleted = row.deleted_at !== null
    const hasEnded = isDeleted || row.status === 'ready' || row.status === 'failed'
    const log = await readHost(deps, row, { after: number, wait_ms: hasEnded ? 0 : WAIT_MS }, signal)
    for (const line of log.lines) {
      number = line.line
      last = line
      if (number > after && isWanted(line.attempt, attempt)) yield toFrame(line)
    }
    if (log.lines.length > 0) continue
    if (!hasEnded) {
      await delay(POLL_MS, undefined, { signal })
      continue
    }
    const isReasonMissing = !isDeleted && row.status === 'failed' && !last?.stream.includes(row.failure_reason ?? '')
    const isContinued = after > 0 && last === undefined
    if (isReasonMissing && !isContinued && isWanted(row.attempt, attempt)) yield await reasonLine(deps, row, number + 1)
    if (follow) yield { final: true, status: row.status === 'ready' && !isDeleted ? 'ready' : 'failed' }
    return
  }
}

const NO_LOG: HostBuildLog = { lines: [], ended: true }

/** Nothing if the build has not reached a host yet, or if its log is not kept any more. */
async function readHost(
  deps: Deps,
  { id, host_id, attempt }: TemplateRow,
  query: { after: number; wait_ms: number },
  signal: AbortSignal,
): Promise<HostBuildLog> {
  if (attempt === 0 || host_id === null) return NO_LOG
  try {
    return await (await deps.hosts.get(host_id)).readBuildLog(id, query, signal)
  } catch (error) {
    if (error instanceof HostError && error.code === 'not_found') return NO_LOG
    throw error
  }
}

const isWanted = (attempt: number, wanted: number): boolean => wanted === 0 || attempt === wanted

const toFrame = ({ line: number, attempt, ts, stream }: HostBuildLogLine): TemplateLogLine => ({
  stream,
  line: stream.replace(/\r?\n$/, ''),
  ts,
  attempt,
  number,
})

async function reasonLine(deps: Deps, row: TemplateRow, number: number): Promise<TemplateLogLine> {
  const ended = await deps.db
    .selectFrom('template_attempts')
    .select('ended_at')
    .where('template_id', '=', row.id)
    .where('attempt', '=', row.attempt)
    .executeTakeFirst()
  const ts = renderTime(ended?.ended_at ?? row.created_at)
  return toFrame({ line: number, attempt: row.attempt, ts, stream: `ERROR: ${row.failure_reason}\n` })
}
