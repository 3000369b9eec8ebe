/** Watches that a transfer makes progress, and reads bodies that are parsed. */
import type { Readable } from 'node:stream'
import { S3ProxyError } from './error.ts'

/** One byte from time to time is no progress: it would occupy a place for hours. */
const PROGRESS_BYTES = 16 * 1024

export class ProgressTimer {
  readonly #timer: NodeJS.Timeout
  #bytes = 0

  constructor(limitMs: number, onStall: () => void) {
    this.#timer = setTimeout(onStall, limitMs)
  }

  add(bytes: number): void {
    this.#bytes += bytes
    if (this.#bytes < PROGRESS_BYTES) return
    this.#bytes = 0
    this.#timer.refresh()
  }

  stop(): void {
    clearTimeout(this.#timer)
  }
}

export type ReadLimits = { maxBytes: number; limitMs: number; tooLong: S3ProxyError; tooSlow: S3ProxyError }

/** Throws if the stream is longer or slower than allowed, or ends early. What becomes of it then is for the caller to decide. */
export async function readAll(stream: Readable, { maxBytes, limitMs, tooLong, tooSlow }: ReadLimits): Promise<Buffer> {
  const { promise, resolve, reject } = Promise.withResolvers<Buffer>()
  const chunks: Buffer[] = []
  let bytes = 0
  const timer = setTimeout(() => reject(tooSlow), limitMs)
  const add = (chunk: Buffer) => {
    bytes += chunk.length
    if (bytes > maxBytes) reject(tooLong)
    else chunks.push(chunk)
  }
  stream.on('data', add)
  stream.once('end', () => resolve(Buffer.concat(chunks)))
  const onClose = (cause?: Error) =>
    reject(new S3ProxyError(502, 'UpstreamError', 'the connection closed too early', { cause }))
  stream.once('error', onClose)
  stream.once('close', onClose)
  try {
    return await promise
  } finally {
    clearTimeout(timer)
    stream.off('data', add)
  }
}
