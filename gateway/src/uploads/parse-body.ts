/**
 * Parses and checks a whole deploy body, and packs its files. It runs in a worker (parse-worker.ts): a body of 50 MB takes
 * a few hundred milliseconds. Everything that can be wrong with a body is found here, before any payment is looked at.
 */
import { createHash } from 'node:crypto'
import { gzipSync } from 'node:zlib'
import { type UploadFile, type UploadLimits, warnOfSecrets } from './collect.ts'
import { fault } from './fault.ts'
import { readFiles } from './read-files.ts'
import { readZip } from './read-zip.ts'
import { isLongerThan, isObject, isStorable, parseSettings, type Secrets, type Settings } from './settings.ts'
import { packTar } from './tar.ts'

export type BodyLimits = UploadLimits & { reservedNames: string[] }

export type ParsedBody = {
  uniqueName: string
  displayName: string
  description: string | null
  months: number
  settings: Settings
  secrets: Secrets
  /** SHA-256 of the body. */
  bodyDigest: string
  /** tar.gz of the files. */
  archive: Uint8Array<ArrayBuffer>
  /** SHA-256 of the archive. */
  uploadDigest: string
  warnings: string[]
}

const NAME = /^[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])$/
const RESERVED_NAMES = ['www', 'api', 'admin', 'gateway', 'health']
const DISPLAY_NAME_MAX = 100
const DESCRIPTION_MAX = 2048
const MONTHS_MAX = 12
// biome-ignore lint/suspicious/noControlCharactersInRegex: these are what is looked for.
const CONTROL = /[\u0000-\u001f\u007f-\u009f]/
/** The archive only travels to a sandbox of the same installation. */
const GZIP_LEVEL = 1

export async function parseBody(bytes: Uint8Array, limits: BodyLimits): Promise<ParsedBody> {
  checkStructure(bytes, limits.entriesMax)
  const body = parseJson(bytes)
  const fields = {
    uniqueName: parseName(body.uniqueName, limits.reservedNames),
    displayName: parseDisplayName(body.displayName),
    description: parseDescription(body.description),
    months: parseMonths(body.months),
    ...parseSettings(body.settings),
  }
  const files = await readUpload(body.upload, limits)
  if (files.length === 0) throw fault('upload', 'has no files')
  const archive = gzipSync(packTar(files), { level: GZIP_LEVEL })
  const warning = warnOfSecrets(files)
  return {
    ...fields,
    bodyDigest: createHash('sha256').update(bytes).digest('hex'),
    // A copy, because memory of the compressor cannot be passed to another thread.
    archive: new Uint8Array(archive),
    uploadDigest: createHash('sha256').update(archive).digest('hex'),
    warnings: warning === undefined ? [] : [warning],
  }
}

/** Brackets, braces and commas. Base64 has none of them, so that a body has few, however large it is. */
const STRUCTURE = [0x5b, 0x7b, 0x2c]
const STRUCTURE_PER_ENTRY = 8
/** Enough for commas in texts and environment variables. */
const STRUCTURE_ELSEWHERE = 200_000

/** Millions of tiny values would take a minute and most of a gigabyte to parse. */
function checkStructure(bytes: Uint8Array, entriesMax: number): void {
  let left = entriesMax * STRUCTURE_PER_ENTRY + STRUCTURE_ELSEWHERE
  for (const byte of STRUCTURE) {
    for (let at = bytes.indexOf(byte); at >= 0; at = bytes.indexOf(byte, at + 1)) {
      left--
      if (left < 0) throw fault('body', 'has too many values')
    }
  }
}

function parseJson(bytes: Uint8Array): Record<string, unknown> {
  let body: unknown
  try {
    body = JSON.parse(new TextDecoder('utf-8', { fatal: true }).decode(bytes))
  } catch {
    throw fault('body', 'is not valid JSON')
  }
  if (!isObject(body)) throw fault('body', 'must be an object')
  return body
}

function parseName(value: unknown, reserved: string[]): string {
  if (typeof value !== 'string') throw fault('uniqueName', 'is required and must be text')
  if (value.length < 3 || value.length > 63 || !NAME.test(value)) {
    throw fault('uniqueName', 'must be 3 to 63 letters, digits and hyphens, with no hyphen at the start or end')
  }
  const name = value.toLowerCase()
  if ([...RESERVED_NAMES, ...reserved.map((one) => one.toLowerCase())].includes(name)) {
    throw fault('uniqueName', `${name} is reserved`)
  }
  return value
}

function parseDisplayName(value: unknown): string {
  if (typeof value !== 'string') throw fault('displayName', 'is required and must be text')
  if (value === '' || isLongerThan(value, DISPLAY_NAME_MAX) || CONTROL.test(value) || !value.isWellFormed()) {
    throw fault('displayName', `must be 1 to ${DISPLAY_NAME_MAX} characters without control characters`)
  }
  return value
}

function parseDescription(value: unknown): string | null {
  if (value === undefined || value === null) return null
  if (typeof value !== 'string' || isLongerThan(value, DESCRIPTION_MAX) || !isStorable(value)) {
    throw fault('description', `must be text of at most ${DESCRIPTION_MAX} characters`)
  }
  return value
}

function parseMonths(value: unknown): number {
  if (value === undefined || value === null) return 1
  if (!Number.isInteger(value) || (value as number) < 1 || (value as number) > MONTHS_MAX) {
    throw fault('months', `must be a whole number from 1 to ${MONTHS_MAX}`)
  }
  return value as number
}

async function readUpload(value: unknown, limits: UploadLimits): Promise<UploadFile[]> {
  if (!isObject(value)) throw fault('upload', 'is required and must be an object')
  if (value.type === 'files') return readFiles(value.files, limits)
  if (value.type === 'zip') return readZip(value.data, limits)
  throw fault('upload.type', 'must be files or zip')
}
