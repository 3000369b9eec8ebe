/**
 * What is known about one generation of one sandbox, in one file: its objects with their checksums, and everything a
 * host must have to run it. A state file has no check of its own, not even that it belongs to its memory (platform
 * 4.2), so a generation is either whole, by its manifest, or it is nothing.
 *
 * The file is outside the door like everything that was on a disk: its last field is a checksum of the rest, and it is
 * checked against its schema.
 */
import { createHash } from 'node:crypto'
import { SandboxId, Timestamp } from '@warren/protocol'
import { type Static, Type } from 'typebox'
import { Value } from 'typebox/value'

const Count = Type.Integer({ minimum: 0 })
const StoredObject = Type.Object({
  id: Type.String({ pattern: '^[\\w-]{1,80}$' }),
  bytes: Count,
  crcs: Type.Array(Count, { description: 'CRC-32 of every MiB.' }),
})
export type StoredObject = Static<typeof StoredObject>

/** A host that has not all of this cannot run it. */
export const Needs = Type.Object({
  base: Type.String({ description: 'Key of the base whose memory and disk lie under the saved ones.' }),
  baseId: Type.String({ description: 'Of that very build of it.' }),
  machine: Type.Object({
    version: Type.String({ description: 'Of QEMU; a newer one will do.' }),
    type: Type.String(),
    accel: Type.Enum(['kvm', 'tcg']),
    cpu: Type.String(),
  }),
  cpu_flags: Type.Optional(Type.Array(Type.String(), { description: 'Of a real processor, where the guest saw it.' })),
  devices: Type.Array(Type.String()),
  shape: Type.Object({ vcpu: Count, mem_mib: Count }),
})
export type Needs = Static<typeof Needs>

export const Manifest = Type.Object({
  format: Type.Literal(1),
  sandbox: SandboxId,
  generation: Type.Integer({ minimum: 1 }),
  saved_at: Timestamp,
  needs: Needs,
  disk_mib: Count,
  memory: Type.Object({
    ...StoredObject.properties,
    data_bytes: Count,
    dirty_bytes: Count,
    over: Type.Enum(['base', 'zeros'], { description: 'What the pages that are not in it are.' }),
  }),
  state: StoredObject,
  disk: Type.Array(StoredObject, { description: "Layers over the base's disk, the oldest first." }),
})
export type Manifest = Static<typeof Manifest>

export const objectsOf = (manifest: Manifest): StoredObject[] => [manifest.memory, manifest.state, ...manifest.disk]

export function renderManifest(manifest: Manifest): string {
  const text = JSON.stringify(manifest)
  return `${text.slice(0, -1)},"sum":"${sumOf(text)}"}\n`
}

/** Throws with what is wrong. */
export function parseManifest(text: string, wanted: { sandbox: string; generation: number }): Manifest {
  const [, body, sum] = /^(.*),"sum":"([0-9a-f]{64})"\}\n$/s.exec(text) ?? []
  if (body === undefined) throw new Error('its manifest is cut off')
  if (sumOf(`${body}}`) !== sum) throw new Error('its manifest has changed')
  const manifest: unknown = JSON.parse(`${body}}`)
  if (!Value.Check(Manifest, manifest)) throw new Error('its manifest is of a form this version does not know')
  if (manifest.sandbox !== wanted.sandbox || manifest.generation !== wanted.generation) {
    throw new Error(`its manifest is that of generation ${manifest.generation} of ${manifest.sandbox}`)
  }
  return manifest
}

const sumOf = (text: string): string => createHash('sha256').update(text).digest('hex')
