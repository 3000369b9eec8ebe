/** One sample of a sandbox: what it used in the ten seconds before a tick, and how it is written to a ring (rings.ts). */
import { crc32 } from 'node:zlib'
import { METRICS_STEP_SECONDS, type MetricsPoint } from '@warren/protocol'

export const STEP_MS = METRICS_STEP_SECONDS * 1_000

/** The number of whole steps since 1970. Samples are taken at ticks, so all sandboxes have samples of the same times. */
export type Tick = number

/** A guest's values are 0 if the guest did not answer. */
export type Sample = Omit<MetricsPoint, 'ts' | 'cpu_per_core'>

/** The order in a record. A change of it, or a new field, needs another VERSION in rings.ts. */
const FIELDS = [
  'cpu_cores_used',
  'memory_bytes',
  'memory_used_guest_bytes',
  'memory_limit_bytes',
  'net_bytes_in_per_sec',
  'net_bytes_out_per_sec',
  'storage_bytes',
  'storage_limit_bytes',
] as const satisfies (keyof Sample)[]

const TICK_BYTES = 4
const FIELD_BYTES = 8
const CHECKSUM_AT = TICK_BYTES + FIELDS.length * FIELD_BYTES
export const RECORD_BYTES = CHECKSUM_AT + 4

export function renderRecord(tick: Tick, sample: Sample): Buffer {
  const record = Buffer.alloc(RECORD_BYTES)
  record.writeUInt32LE(tick, 0)
  FIELDS.forEach((field, i) => {
    record.writeDoubleLE(sample[field], TICK_BYTES + i * FIELD_BYTES)
  })
  record.writeUInt32LE(crc32(record.subarray(0, CHECKSUM_AT)), CHECKSUM_AT)
  return record
}

/** Undefined for a record that was never written, or only partly. */
export function parseRecord(record: Buffer): { tick: Tick; sample: Sample } | undefined {
  const tick = record.length === RECORD_BYTES ? record.readUInt32LE(0) : 0
  if (tick === 0 || record.readUInt32LE(CHECKSUM_AT) !== crc32(record.subarray(0, CHECKSUM_AT))) return undefined
  const values = FIELDS.map((field, i) => [field, record.readDoubleLE(TICK_BYTES + i * FIELD_BYTES)])
  return { tick, sample: Object.fromEntries(values) as Sample } // FIELDS has all of them.
}

export const renderPoint = (tick: Tick, sample: Sample): MetricsPoint => ({
  ts: new Date(tick * STEP_MS).toISOString(),
  ...sample,
})
