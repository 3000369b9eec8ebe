/**
 * The samples of the last hour of each sandbox: one file of fixed size per sandbox, with a place for each tick of an hour.
 * The place follows from the tick, so a sample overwrites the one of an hour before, gaps need no records, and a host agent
 * that starts has nothing to recover.
 *
 *   header   8 bytes magic with the version, 4 bytes size of a record, 4 bytes number of records
 *   records  tick, values, checksum (sample.ts). All zeros: never written
 *
 * Files are opened for each write: a sandbox is written once in ten seconds, and a deleted one must not be created again
 * by a descriptor that is still open. Writes are not synced: after a power failure the last half minute may be missing. A
 * record that was written partly fails its checksum and is left out.
 *
 * When the clock was set back, the samples that are in the future now are deleted at the next write. Otherwise they would
 * appear among new ones as their time comes.
 */
import { closeSync, mkdirSync, openSync, readdirSync, readFileSync, rmSync, writeSync } from 'node:fs'
import path from 'node:path'
import { METRICS_STEP_SECONDS, METRICS_WINDOW_SECONDS } from '@warren/protocol'
import { parseRecord, RECORD_BYTES, renderRecord, type Sample, type Tick } from './sample.ts'

const VERSION = 1
export const RING_RECORDS = METRICS_WINDOW_SECONDS / METRICS_STEP_SECONDS
const HEADER_BYTES = 16
export const RING_BYTES = HEADER_BYTES + RING_RECORDS * RECORD_BYTES
const RING = /^(sb-\w+)\.ring$/

export type StoredSample = { tick: Tick; sample: Sample }

export class Rings {
  readonly #folder: string
  /** The newest tick of each ring that this process has written. */
  readonly #newest = new Map<string, Tick>()

  constructor(folder: string) {
    this.#folder = folder
    mkdirSync(folder, { recursive: true, mode: 0o700 })
  }

  write(id: string, tick: Tick, sample: Sample): void {
    const newest = this.#newest.get(id) ?? this.#open(id)
    // If a write fails, the next one looks at the file again.
    this.#newest.delete(id)
    if (newest > tick) this.#rewrite(id, (stored) => stored.tick < tick)
    writeAt(this.#fileOf(id), offsetOf(tick), renderRecord(tick, sample))
    this.#newest.set(id, tick)
  }

  /** The samples of the hour that ends with a tick, oldest first. Empty for a sandbox without samples. */
  list(id: string, now: Tick): StoredSample[] {
    return this.#read(id)
      .filter(({ tick }) => tick <= now && tick > now - RING_RECORDS)
      .sort((one, other) => one.tick - other.tick)
  }

  remove(id: string): void {
    this.#newest.delete(id)
    rmSync(this.#fileOf(id), { force: true })
  }

  /** Removes everything in the folder but the rings of these sandboxes. */
  removeOthers(isKnown: (id: string) => boolean): void {
    for (const name of readdirSync(this.#folder)) {
      const [, id] = RING.exec(name) ?? []
      if (id === undefined || !isKnown(id)) rmSync(path.join(this.#folder, name), { recursive: true, force: true })
    }
  }

  /** Returns the newest tick. A ring that does not exist, or has another format, is made anew. */
  #open(id: string): Tick {
    const stored = this.#read(id)
    if (stored.length === 0) this.#rewrite(id, () => false)
    return Math.max(0, ...stored.map(({ tick }) => tick))
  }

  #rewrite(id: string, keep: (stored: StoredSample) => boolean): void {
    const bytes = Buffer.alloc(RING_BYTES)
    HEADER.copy(bytes)
    for (const { tick, sample } of this.#read(id).filter(keep)) renderRecord(tick, sample).copy(bytes, offsetOf(tick))
    writeAt(this.#fileOf(id), 0, bytes)
  }

  #read(id: string): StoredSample[] {
    const bytes = readIfExists(this.#fileOf(id))
    if (!bytes.subarray(0, HEADER_BYTES).equals(HEADER)) return []
    return Array.from({ length: RING_RECORDS }, (_, place) => {
      const from = HEADER_BYTES + place * RECORD_BYTES
      const stored = parseRecord(bytes.subarray(from, from + RECORD_BYTES))
      return stored && placeOf(stored.tick) === place ? stored : []
    }).flat()
  }

  #fileOf(id: string): string {
    const name = `${id}.ring`
    if (!RING.test(name)) throw new Error(`${JSON.stringify(id)} is not the id of a sandbox`)
    return path.join(this.#folder, name)
  }
}

const HEADER = Buffer.alloc(HEADER_BYTES)
HEADER.write(`WARRENM${VERSION}`, 'latin1')
HEADER.writeUInt32LE(RECORD_BYTES, 8)
HEADER.writeUInt32LE(RING_RECORDS, 12)

const placeOf = (tick: Tick): number => tick % RING_RECORDS
const offsetOf = (tick: Tick): number => HEADER_BYTES + placeOf(tick) * RECORD_BYTES

function writeAt(file: string, offset: number, bytes: Buffer): void {
  const fd = offset === 0 ? openSync(file, 'w', 0o600) : openSync(file, 'r+')
  try {
    writeSync(fd, bytes, 0, bytes.length, offset)
  } finally {
    closeSync(fd)
  }
}

function readIfExists(file: string): Buffer {
  try {
    return readFileSync(file)
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return Buffer.alloc(0)
    throw error
  }
}
