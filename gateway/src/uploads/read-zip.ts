/**
 * An upload of the form `{ type: 'zip', data }`. All entries are checked by what the central directory states before the
 * first one is inflated; bytes are counted again while inflating, because a bomb states wrong sizes.
 */
import { crc32 } from 'node:zlib'
import yauzl, { type Entry, type ZipFile } from 'yauzl'
import { type EntryKind, entryFault, UploadCollector, type UploadFile, type UploadLimits } from './collect.ts'
import { BodyFault, fault } from './fault.ts'
import { decodeBase64 } from './read-files.ts'

const STORED = 0
const DEFLATED = 8
/** The type of a file in its Unix mode. */
const TYPE_MASK = 0o170000
const TYPE_REGULAR = 0o100000
const TYPE_DIRECTORY = 0o040000

export async function readZip(data: unknown, limits: UploadLimits): Promise<UploadFile[]> {
  if (typeof data !== 'string') throw fault('upload.data', 'must be a zip file in base64')
  const bytes = decodeBase64(data)
  if (!bytes) throw fault('upload.data', 'is not valid base64')
  try {
    return stripTopFolder(await readEntries(bytes, limits))
  } catch (error) {
    if (error instanceof BodyFault) throw error
    throw fault('upload.data', `is not a valid zip file: ${(error as Error).message}`)
  }
}

type Kept = { entry: Entry; path: string; kind: EntryKind }

async function readEntries(bytes: Buffer, limits: UploadLimits): Promise<UploadFile[]> {
  const options = { lazyEntries: true, autoClose: false, strictFileNames: true, validateEntrySizes: true }
  const zip = await yauzl.fromBufferPromise(bytes, options)
  const collector = new UploadCollector(limits)
  collector.checkCount(zip.entryCount)
  const kept: Kept[] = []
  for await (const entry of zip.eachEntry()) {
    const { path, kind } = checkEntry(entry)
    if (collector.add(path, kind, entry.uncompressedSize)) kept.push({ entry, path, kind })
  }
  const files: UploadFile[] = []
  for (const { entry, path, kind } of kept) {
    if (kind === 'directory') continue
    files.push({ path, content: await inflate(zip, entry, path), isExecutable: (modeOf(entry) & 0o111) !== 0 })
  }
  return files
}

const modeOf = (entry: Entry): number => entry.externalFileAttributes >>> 16

function checkEntry(entry: Entry): { path: string; kind: EntryKind } {
  const name = entry.fileName
  const type = modeOf(entry) & TYPE_MASK
  const isDirectory = name.endsWith('/') || type === TYPE_DIRECTORY
  const path = name.replace(/\/$/, '')
  if (entry.isEncrypted()) throw entryFault(path, 'is encrypted')
  if (entry.compressionMethod !== STORED && entry.compressionMethod !== DEFLATED) {
    throw entryFault(path, `uses the unknown compression method ${entry.compressionMethod}`)
  }
  if (type !== 0 && type !== (isDirectory ? TYPE_DIRECTORY : TYPE_REGULAR)) {
    throw entryFault(path, 'is neither a regular file nor a directory')
  }
  if (isDirectory && entry.uncompressedSize > 0) throw entryFault(path, 'is a directory with content')
  return { path, kind: isDirectory ? 'directory' : 'file' }
}

async function inflate(zip: ZipFile, entry: Entry, path: string): Promise<Buffer> {
  const chunks: Buffer[] = []
  let bytes = 0
  try {
    for await (const chunk of (await zip.openReadStreamPromise(entry)) as AsyncIterable<Buffer>) {
      bytes += chunk.length
      if (bytes > entry.uncompressedSize) throw entryFault(path, 'is larger than the zip file states')
      chunks.push(chunk)
    }
  } catch (error) {
    if (error instanceof BodyFault) throw error
    throw entryFault(path, `cannot be read: ${(error as Error).message}`)
  }
  const content = Buffer.concat(chunks)
  if (content.length !== entry.uncompressedSize) throw entryFault(path, 'is smaller than the zip file states')
  if (crc32(content) !== entry.crc32) throw entryFault(path, 'does not match its checksum')
  return content
}

/** Archives made by hosting services and file managers hold one folder with everything in it. */
function stripTopFolder(files: UploadFile[]): UploadFile[] {
  const [first] = files
  const top = first?.path.split('/')[0]
  if (top === undefined || !files.every((file) => file.path.startsWith(`${top}/`))) return files
  return files.map((file) => ({ ...file, path: file.path.slice(top.length + 1) }))
}
