/**
 * Reads the names of a packed upload, and the content of the small files that say what kind of project it is. The archive is
 * one of tar.ts, which has regular files only. Content is read as a stream: an upload has up to 100 MiB.
 */
import { createReadStream } from 'node:fs'
import { pipeline } from 'node:stream/promises'
import { createGunzip } from 'node:zlib'

const BLOCK = 512

export type UploadContent = {
  /** Relative paths. */
  paths: Set<string>
  /** Of the files that `wants` chose. */
  texts: Map<string, string>
}

export async function readUploadFiles(
  file: string,
  wants: (path: string, bytes: number) => boolean,
): Promise<UploadContent> {
  const content: UploadContent = { paths: new Set(), texts: new Map() }
  const reader = new TarReader(content, wants)
  await pipeline(createReadStream(file), createGunzip(), async (chunks: AsyncIterable<Buffer>) => {
    for await (const chunk of chunks) reader.push(chunk)
  })
  return content
}

class TarReader {
  readonly #content: UploadContent
  readonly #wants: (path: string, bytes: number) => boolean
  /** A header that is not complete yet. */
  #head: Buffer = Buffer.alloc(0)
  /** Of the current entry: content, then padding. */
  #contentLeft = 0
  #skip = 0
  #path = ''
  #kept: Buffer[] | undefined
  #isPax = false
  /** From an extended header, for the entry after it. */
  #longPath: string | undefined

  constructor(content: UploadContent, wants: (path: string, bytes: number) => boolean) {
    this.#content = content
    this.#wants = wants
  }

  push(chunk: Buffer): void {
    let rest = chunk
    while (rest.length > 0) {
      if (this.#contentLeft > 0) {
        const taken = rest.subarray(0, this.#contentLeft)
        this.#kept?.push(taken)
        this.#contentLeft -= taken.length
        rest = rest.subarray(taken.length)
        if (this.#contentLeft === 0) this.#endEntry()
      } else if (this.#skip > 0) {
        const skipped = Math.min(this.#skip, rest.length)
        this.#skip -= skipped
        rest = rest.subarray(skipped)
      } else {
        const missing = BLOCK - this.#head.length
        this.#head = Buffer.concat([this.#head, rest.subarray(0, missing)])
        rest = rest.subarray(missing)
        if (this.#head.length === BLOCK) this.#beginEntry()
      }
    }
  }

  #beginEntry(): void {
    const head = this.#head
    this.#head = Buffer.alloc(0)
    if (head[0] === 0) return // The end of the archive: blocks of zeros.
    const size = Number.parseInt(head.toString('latin1', 124, 136), 8)
    this.#isPax = head[156] === 'x'.charCodeAt(0)
    this.#path = this.#longPath ?? head.toString('utf8', 0, 100).replace(/\0.*$/s, '')
    this.#contentLeft = size
    this.#skip = (BLOCK - (size % BLOCK)) % BLOCK
    const isKept = this.#isPax || this.#wants(this.#path, size)
    this.#kept = isKept ? [] : undefined
    if (!this.#isPax) {
      this.#longPath = undefined
      this.#content.paths.add(this.#path)
    }
    if (size === 0) this.#endEntry()
  }

  #endEntry(): void {
    const bytes = this.#kept && Buffer.concat(this.#kept)
    this.#kept = undefined
    if (!bytes) return
    if (this.#isPax) this.#longPath = /^\d+ path=([^\n]*)\n$/.exec(bytes.toString('utf8'))?.[1]
    else this.#content.texts.set(this.#path, bytes.toString('utf8'))
  }
}
