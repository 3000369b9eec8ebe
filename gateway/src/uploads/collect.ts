/**
 * The one validator of uploads, whatever their form. `add` checks an entry by its name and size before any content is
 * decoded, `finish` returns the files. Every refusal names the entry.
 */
import path from 'node:path'
import { fault } from './fault.ts'
import { checkPath, pathKey } from './path.ts'

export type UploadLimits = { expandedMaxBytes: number; fileMaxBytes: number; entriesMax: number }
export type EntryKind = 'file' | 'directory'
export type UploadFile = { path: string; content: Buffer; isExecutable: boolean }

export class UploadCollector {
  readonly #limits: UploadLimits
  readonly #kinds = new Map<string, { kind: EntryKind; path: string; isImplied: boolean }>()
  #bytes = 0
  #entries = 0

  constructor(limits: UploadLimits) {
    this.#limits = limits
  }

  /** Before a list of entries is read. */
  checkCount(count: number): void {
    if (count > this.#limits.entriesMax)
      throw fault('upload', `must not have more than ${this.#limits.entriesMax} entries`)
  }

  /** Returns false for what is dropped: the history of a repository is not part of a project. */
  add(entry: string, kind: EntryKind, bytes: number): boolean {
    this.#entries++
    this.checkCount(this.#entries)
    const wrong = checkPath(entry)
    if (wrong !== undefined) throw entryFault(entry, wrong)
    if (isRepositoryData(entry, kind)) return false
    if (bytes > this.#limits.fileMaxBytes) {
      throw entryFault(entry, `must not be larger than ${this.#limits.fileMaxBytes} bytes`)
    }
    this.#bytes += bytes
    if (this.#bytes > this.#limits.expandedMaxBytes) {
      throw fault('upload', `must not be larger than ${this.#limits.expandedMaxBytes} bytes in all`)
    }
    for (const parent of parentsOf(entry)) this.#claim(entry, parent, 'directory', true)
    this.#claim(entry, entry, kind, false)
    return true
  }

  /** A name may be used once, and for one kind, in all spellings that some system takes for the same. */
  #claim(entry: string, name: string, kind: EntryKind, isImplied: boolean): void {
    const key = pathKey(name)
    const earlier = this.#kinds.get(key)
    if (!earlier) return void this.#kinds.set(key, { kind, path: name, isImplied })
    if (earlier.kind !== kind) throw entryFault(entry, `${quote(earlier.path)} is both a file and a directory`)
    if (earlier.path !== name) throw entryFault(entry, `differs from ${quote(earlier.path)} only in spelling`)
    if (kind === 'file' || (!isImplied && !earlier.isImplied)) throw entryFault(entry, 'appears twice')
    earlier.isImplied &&= isImplied
  }
}

export const entryFault = (entry: string, text: string) => fault('upload', `${quote(entry)} ${text}`)

const quote = (entry: string): string => JSON.stringify(entry.length > 120 ? `${entry.slice(0, 120)}…` : entry)

function isRepositoryData(entry: string, kind: EntryKind): boolean {
  const segments = entry.split('/')
  return segments.slice(0, -1).includes('.git') || (kind === 'directory' && segments.at(-1) === '.git')
}

function parentsOf(entry: string): string[] {
  const segments = entry.split('/')
  return segments.slice(1).map((_, i) => segments.slice(0, i + 1).join('/'))
}

const PRIVATE_KEY = /-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY-----/
const KEY_NAMES = /^(?:id_(?:rsa|dsa|ecdsa|ed25519)|.*\.(?:p12|pfx|keystore|jks))$/i
const KEY_SEARCH_BYTES = 8 * 1024
const NAMES_MAX = 5

/** A sentence about files that are probably not meant to be published, or undefined. They are kept. */
export function warnOfSecrets(files: readonly UploadFile[]): string | undefined {
  const found = files.filter(looksSecret).map((file) => file.path)
  if (found.length === 0) return undefined
  const names = found.slice(0, NAMES_MAX).join(', ')
  const more = found.length > NAMES_MAX ? ` and ${found.length - NAMES_MAX} more` : ''
  return `Warning: the upload contains files that may hold secrets: ${names}${more}.`
}

function looksSecret({ path: file, content }: UploadFile): boolean {
  const name = path.posix.basename(file)
  if (name.startsWith('.env') || KEY_NAMES.test(name)) return true
  return PRIVATE_KEY.test(content.subarray(0, KEY_SEARCH_BYTES).toString('latin1'))
}
