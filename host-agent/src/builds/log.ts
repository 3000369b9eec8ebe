/**
 * The log of a build: numbered lines through all attempts, one JSON object per line of a file. Readers find a line by an
 * index of some offsets, so a log of any length needs little memory, and a reader that falls behind loses nothing.
 *
 * Text arrives in pieces and is split into lines; a line that is too long is split into several. `flush` ends a line that has
 * no line ending yet. When the limit of an attempt is reached, one line says so and the rest is dropped.
 *
 * The file is opened for each write and read: a host keeps the logs of many builds.
 */
import { EventEmitter, once } from 'node:events'
import { appendFile, type FileHandle, mkdir, open, truncate } from 'node:fs/promises'
import path from 'node:path'
import { StringDecoder } from 'node:string_decoder'
import { type HostBuildLog, HostBuildLogLine, TEMPLATE_LOG_LINE_MAX_BYTES } from '@warren/protocol'
import { Compile } from 'typebox/compile'

/** Every so many lines the offset of one is remembered. */
const INDEX_STEP = 256
/** Of a response. */
const READ_BYTES = 1024 * 1024
/** What a line takes beside its text counts too, or a log of empty lines would be eighty times its limit. */
const LINE_OVERHEAD_BYTES = 80

const lineSchema = Compile(HostBuildLogLine)

export class BuildLog {
  readonly #file: string
  #isClosed = false
  /** Offsets of the lines 1, 257, 513, …; 0 for those that were removed because of their age. */
  #index: number[] = [0]
  /** Number of the last line. */
  #lines = 0
  /** Size of the file. */
  #bytes = 0
  #attempt = 0
  #left = 0
  #dropping = false
  #rest = ''
  #decoder = new StringDecoder('utf8')
  #writing: Promise<void> = Promise.resolve()
  /** Number of the last line that is in the file. */
  #written = 0
  readonly #changed = new EventEmitter().setMaxListeners(0)

  private constructor(file: string) {
    this.#file = file
  }

  /** Of a new build, or of one that an earlier host agent ran. The end of a file that was cut by a crash is dropped. */
  static async open(file: string): Promise<BuildLog> {
    const log = new BuildLog(file)
    await mkdir(path.dirname(file), { recursive: true, mode: 0o700 })
    const handle = await open(file, 'a+', 0o600)
    try {
      for await (const { line, bytes } of log.#readFrom(0, handle)) log.#count(line.line, bytes)
      await handle.truncate(log.#bytes)
    } finally {
      await handle.close()
    }
    log.#lines = log.#written
    return log
  }

  get isDropping(): boolean {
    return this.#dropping
  }

  beginAttempt(attempt: number, maxBytes: number): void {
    this.#attempt = attempt
    this.#left = maxBytes
    this.#dropping = false
    this.#rest = ''
    this.#decoder = new StringDecoder('utf8')
  }

  /** Output of a step. */
  write(bytes: Uint8Array): void {
    if (this.#dropping) return
    this.#rest += this.#decoder.write(bytes as Buffer)
    let from = 0
    for (let end = this.#endOfLine(from); end > from; end = this.#endOfLine(from)) {
      this.#add(this.#rest.slice(from, end))
      from = end
    }
    this.#rest = this.#rest.slice(from)
  }

  /** A line of the host agent, which is not part of the output. */
  writeLine(text: string): void {
    this.flush()
    this.#add(`${text}\n`)
  }

  /** The last line of an attempt, for which there is always space. */
  writeLastLine(text: string): void {
    this.flush()
    this.#dropping = false
    this.#left = Number.POSITIVE_INFINITY
    this.#add(`${text}\n`)
  }

  /** The output of a step has ended, perhaps without a line ending. */
  flush(): void {
    const rest = this.#rest + this.#decoder.end()
    this.#rest = ''
    if (rest !== '') this.#add(`${rest}\n`)
  }

  /** Settles when everything so far is in the file. */
  settled(): Promise<void> {
    return this.#writing
  }

  /** `isEnded` is asked after the lines were read: then no later line can be missing. */
  async read(after: number, waitMs: number, isEnded: () => boolean): Promise<HostBuildLog> {
    for (const deadline = Date.now() + waitMs; ; ) {
      await this.#writing
      const ended = isEnded()
      const leftMs = deadline - Date.now()
      const written = this.#written
      const lines = written > after ? await this.#readLines(after) : []
      if (lines.length > 0 || ended || leftMs <= 0) {
        return { lines, ended: ended && (lines.at(-1)?.line ?? this.#written) === this.#written }
      }
      // There may have been a change while the file was read, in which all those lines are missing.
      if (this.#written !== written || isEnded()) continue
      await once(this.#changed, 'change', { signal: AbortSignal.timeout(leftMs) }).catch(() => {}) // The time is over.
    }
  }

  /** Wakes readers that wait for lines although there will be none. */
  notify(): void {
    this.#changed.emit('change')
  }

  /** Removes the lines so far. The numbers continue. */
  async clear(): Promise<void> {
    await this.#writing
    await truncate(this.#file)
    this.#bytes = 0
    this.#index = this.#index.map(() => 0)
  }

  async close(): Promise<void> {
    this.#isClosed = true
    await this.#writing
    this.notify()
  }

  #endOfLine(from: number): number {
    const end = this.#rest.indexOf('\n', from) + 1
    if (end > 0 && end - from <= LINE_MAX_CHARS) return end
    return this.#rest.length - from > LINE_MAX_CHARS ? from + LINE_MAX_CHARS : 0
  }

  #add(stream: string): void {
    if (this.#dropping) return
    this.#left -= Buffer.byteLength(stream) + LINE_OVERHEAD_BYTES
    if (this.#left < 0) {
      this.#dropping = true
      this.#store('The log is full. Further output is dropped.\n')
    } else this.#store(stream)
  }

  #store(stream: string): void {
    const line: HostBuildLogLine = {
      line: this.#lines + 1,
      attempt: this.#attempt,
      ts: new Date().toISOString(),
      stream,
    }
    this.#lines = line.line
    this.#pending.push(Buffer.from(`${JSON.stringify(line)}\n`))
    this.#writing = this.#writing.then(() => this.#writePending())
  }

  readonly #pending: Buffer[] = []

  /** A log that cannot be written, as on a full disk, loses lines, and the build continues. */
  async #writePending(): Promise<void> {
    const pending = this.#pending.splice(0)
    if (pending.length === 0 || this.#isClosed) return
    const first = this.#lines - pending.length + 1
    try {
      await appendFile(this.#file, Buffer.concat(pending))
      for (const [i, { length }] of pending.entries()) this.#count(first + i, length)
    } catch {
      // Half a line would hide those after it.
      await truncate(this.#file, this.#bytes).catch(() => {})
    }
    this.notify()
  }

  /** The line with this number is at the end of the file. */
  #count(line: number, bytes: number): void {
    // Also for numbers that are missing, because their lines could not be written.
    while (this.#index.length * INDEX_STEP < line) this.#index.push(this.#bytes)
    this.#bytes += bytes
    this.#written = line
  }

  async #readLines(after: number): Promise<HostBuildLogLine[]> {
    const at = Math.min(Math.floor(after / INDEX_STEP), this.#index.length - 1)
    const found: HostBuildLogLine[] = []
    const handle = await open(this.#file, 'r').catch(() => undefined) // Removed with its build.
    if (!handle) return found
    try {
      let bytes = 0
      for await (const one of this.#readFrom(this.#index[at] ?? 0, handle)) {
        if (one.line.line <= after) continue
        bytes += one.bytes
        if (bytes > READ_BYTES && found.length > 0) break
        found.push(one.line)
      }
    } finally {
      await handle.close()
    }
    return found
  }

  async *#readFrom(offset: number, handle: FileHandle): AsyncGenerator<{ line: HostBuildLogLine; bytes: number }> {
    const chunk = Buffer.alloc(READ_BYTES)
    let rest: Buffer = Buffer.alloc(0)
    for (let position = offset; ; ) {
      const { bytesRead } = await handle.read(chunk, 0, chunk.length, position)
      if (bytesRead === 0) return
      position += bytesRead
      rest = Buffer.concat([rest, chunk.subarray(0, bytesRead)])
      for (let end = rest.indexOf(10); end >= 0; end = rest.indexOf(10)) {
        const line = parseLine(rest.subarray(0, end))
        if (!line) return
        yield { line, bytes: end + 1 }
        rest = rest.subarray(end + 1)
      }
    }
  }
}

/** A character takes at most four bytes in UTF-8, counted as two in a string of JavaScript. */
const LINE_MAX_CHARS = Math.floor(TEMPLATE_LOG_LINE_MAX_BYTES / 3)

function parseLine(bytes: Buffer): HostBuildLogLine | undefined {
  try {
    const line: unknown = JSON.parse(bytes.toString('utf8'))
    return lineSchema.Check(line) ? line : undefined
  } catch {
    return undefined // Cut by a crash.
  }
}
