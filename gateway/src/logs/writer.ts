/**
 * Writes the log of one deployment. Lines are collected for a moment and inserted together. Beyond the limit of a deployment,
 * its oldest lines are deleted. One process writes at a time: the one that has claimed the deployment.
 */
import { setTimeout as delay } from 'node:timers/promises'
import { sql } from 'kysely'
import type { LogSource } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { cleanLine, LINE_MAX, LineSplitter } from './line-splitter.ts'
import type { Mask } from './mask.ts'

const FLUSH_MS = 200
const TAIL_LINES = 20
const BATCH = 500
/** What a line counts for beside its text, because a row takes space even if its line is empty. */
const LINE_COST = 32
/** A program that writes faster than this much per pause loses output in its sandbox, which keeps the newest. */
const WAITING_MAX_BYTES = 256 * 1024
const PAUSE_MS = 1_000

type Line = { at: Date; source: LogSource; stream: 'stdout' | 'stderr'; text: string }
/** How far the output of the app in a sandbox was written, stored with the lines. */
type Progress = { sandbox: string; seq: number }

export class LogWriter {
  readonly #deps: Deps
  readonly #deploymentId: string
  readonly #mask: Mask
  readonly #splitters = new Map<string, LineSplitter>()
  #waiting: Line[] = []
  #waitingBytes = 0
  #progress: Progress | undefined
  #tail: string[] = []
  #seq: bigint
  #bytes: number
  #timer: NodeJS.Timeout | undefined
  #flushing: Promise<void> = Promise.resolve()

  constructor(deps: Deps, deploymentId: string, mask: Mask, start: { seq: bigint; bytes: number }) {
    this.#deps = deps
    this.#deploymentId = deploymentId
    this.#mask = mask
    this.#seq = start.seq
    this.#bytes = start.bytes
  }

  /** A line of the gateway itself. */
  note(text: string): void {
    for (const line of this.clean(text).split('\n')) this.#add('gateway', 'stdout', line.slice(0, LINE_MAX))
  }

  output(source: LogSource, stream: 'stdout' | 'stderr', bytes: Buffer, progress?: Progress): void {
    const key = `${source} ${stream}`
    const splitter = this.#splitters.get(key) ?? new LineSplitter(this.#mask)
    this.#splitters.set(key, splitter)
    for (const line of splitter.push(bytes)) this.#add(source, stream, line)
    if (progress) this.#progress = progress
    this.#schedule()
  }

  /** Waited for before more output is read: a program that writes without end must fill neither memory nor the database. */
  async waitForRoom(signal: AbortSignal): Promise<void> {
    if (this.#waitingBytes < WAITING_MAX_BYTES) return
    await this.flush()
    await delay(PAUSE_MS, undefined, { signal })
  }

  /** The output of a program has ended. */
  endOutput(source: LogSource): void {
    for (const stream of ['stdout', 'stderr'] as const) {
      for (const line of this.#splitters.get(`${source} ${stream}`)?.end() ?? []) this.#add(source, stream, line)
    }
  }

  /** The newest lines, without those of the gateway: what a reason ends with. */
  tail(): string[] {
    return [...this.#tail]
  }

  /** Several lines, fit to be stored and shown. */
  clean(text: string): string {
    const lines = this.#mask.hide(text).split('\n')
    return lines.map((line) => cleanLine(line, this.#mask)).join('\n')
  }

  async flush(): Promise<void> {
    clearTimeout(this.#timer)
    this.#timer = undefined
    this.#flushing = this.#flushing.then(() => this.#write())
    await this.#flushing
  }

  #add(source: LogSource, stream: 'stdout' | 'stderr', text: string): void {
    this.#waiting.push({ at: this.#deps.now(), source, stream, text })
    this.#waitingBytes += costOf(text)
    if (source !== 'gateway' && text.trim() !== '') this.#tail = [...this.#tail.slice(-(TAIL_LINES - 1)), text]
    this.#schedule()
  }

  #schedule(): void {
    this.#timer ??= setTimeout(() => void this.flush(), FLUSH_MS)
  }

  /** A log that cannot be written must not fail a deployment. */
  async #write(): Promise<void> {
    const lines = this.#waiting
    const progress = this.#progress
    this.#waiting = []
    this.#waitingBytes = 0
    this.#progress = undefined
    if (lines.length === 0 && !progress) return
    try {
      await this.#insert(lines, progress)
    } catch (error) {
      this.#deps.log.warn({ err: error, deployment: this.#deploymentId }, 'failed to write the log of a deployment')
    }
  }

  async #insert(lines: Line[], progress: Progress | undefined): Promise<void> {
    const rows = lines.map((line) => ({ ...line, deployment_id: this.#deploymentId, seq: ++this.#seq }))
    this.#bytes += lines.reduce((sum, { text }) => sum + costOf(text), 0)
    await this.#deps.db.transaction().execute(async (tx) => {
      for (let from = 0; from < rows.length; from += BATCH) {
        await tx
          .insertInto('gateway.log_lines')
          .values(rows.slice(from, from + BATCH))
          .onConflict((conflict) => conflict.doNothing())
          .execute()
      }
      if (progress) {
        await tx
          .updateTable('gateway.sandboxes')
          .set({ output_seq: BigInt(progress.seq) })
          .where('name', '=', progress.sandbox)
          .execute()
      }
    })
    if (this.#bytes > this.#deps.config.logMaxBytes) await this.#trim()
  }

  async #trim(): Promise<void> {
    const { rows } = await sql<{ bytes: number }>`
      with sized as (
        select seq, sum(octet_length(text) + ${LINE_COST}) over (order by seq desc) as bytes from gateway.log_lines
        where deployment_id = ${this.#deploymentId}),
      dropped as (
        delete from gateway.log_lines l using sized
        where l.deployment_id = ${this.#deploymentId} and l.seq = sized.seq and sized.bytes > ${this.#deps.config.logMaxBytes})
      select coalesce(max(bytes) filter (where bytes <= ${this.#deps.config.logMaxBytes}), 0)::int as bytes from sized`.execute(
      this.#deps.db,
    )
    this.#bytes = rows[0]!.bytes
  }
}

const costOf = (text: string): number => Buffer.byteLength(text) + LINE_COST

export async function openLog(deps: Deps, deploymentId: string, mask: Mask): Promise<LogWriter> {
  const { rows } = await sql<{ seq: bigint; bytes: number }>`
    select coalesce(max(seq), 0) as seq, coalesce(sum(octet_length(text) + ${LINE_COST}), 0)::int as bytes
    from gateway.log_lines where deployment_id = ${deploymentId}`.execute(deps.db)
  return new LogWriter(deps, deploymentId, mask, rows[0]!)
}
