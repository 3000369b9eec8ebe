/**
 * The manifest of one generation of one sandbox: its objects with their checksums, and what a host must have to run it.
 *
 * QEMU's state file has no checksum, and nothing in it says to which memory it belongs. So a generation is valid only
 * as a whole, as its manifest describes it.
 *
 * A manifest that is read from disk is not trusted: its last field is a checksum of the rest, and it is checked against
 * its schema.
 */
import { createHash } from 'node:crypto'
import { GuestAgentInfo, SandboxId, Timestamp } from '@warren/protocol'
import { type Static, Type } from 'typebox'
import { Value } from 'typebox/value'

const Count = Type.Integer({ minimum: 0 })
const StoredObject = Type.Object({
  id: Type.String({ pattern: '^[\\w-]{1,80}$' }),
  bytes: Count,
  crcs: Type.Array(Count, { description: 'CRC-32 of every MiB.' }),
})
export type StoredObject = Static<typeof StoredObject>

/** What a host must have to run the generation. */
export const Requirements = Type.Object({
  base: Type.String({ description: 'Key of the base whose memory and disk the saved ones are layered on.' }),
  baseId: Type.String({ description: 'Id of that build of the base.' }),
  machine: Type.Object({
    version: Type.String({ description: 'Version of QEMU; a newer one works too.' }),
    type: Type.String(),
    hardware: Type.Optional(Type.Integer({ minimum: 1, description: 'See vmm/hardware.ts; absent: 1.' })),
    accel: Type.Enum(['kvm', 'tcg']),
    cpu: Type.String(),
  }),
  cpu_flags: Type.Optional(
    Type.Array(Type.String(), { description: 'Flags of the host processor, if the guest sees it.' }),
  ),
  devices: Type.Array(Type.String()),
  shape: Type.Object({ vcpu: Count, mem_mib: Count }),
})
export type Requirements = Static<typeof Requirements>

export const Manifest = Type.Object({
  format: Type.Literal(1),
  sandbox: SandboxId,
  generation: Type.Integer({ minimum: 1 }),
  saved_at: Timestamp,
  needs: Requirements,
  agent: Type.Optional(GuestAgentInfo), // Absent in generations of versions before it was recorded (vmm/guest-agent.ts).
  disk_mib: Count,
  grow_pending: Type.Optional(
    Type.Boolean({ description: 'The file system may be smaller than the disk (vms/resize.ts).' }),
  ),
  memory: Type.Object({
    ...StoredObject.properties,
    data_bytes: Count,
    dirty_bytes: Count,
    over: Type.Enum(['base', 'zeros'], { description: 'Content of the pages that are not in the file.' }),
  }),
  state: StoredObject,
  disk: Type.Array(StoredObject, { description: 'Disk layers on top of the disk of the base, oldest first.' }),
})
export type Manifest = Static<typeof Manifest>

export const objectsOf = (manifest: Manifest): StoredObject[] => [manifest.memory, manifest.state, ...manifest.disk]

export function renderManifest(manifest: Manifest): string {
  const text = JSON.stringify(manifest)
  return `${text.slice(0, -1)},"sum":"${checksumOf(text)}"}\n`
}

/** Throws an error that says what is wrong. */
export function parseManifest(text: string, wanted: { sandbox: string; generation: number }): Manifest {
  const [, json, checksum] = /^(.*),"sum":"([0-9a-f]{64})"\}\n$/s.exec(text) ?? []
  if (json === undefined) throw new Error('the manifest is truncated')
  if (checksumOf(`${json}}`) !== checksum) throw new Error('the checksum of the manifest does not match')
  const manifest: unknown = JSON.parse(`${json}}`)
  if (!Value.Check(Manifest, manifest)) throw new Error('the manifest has a format that this version does not know')
  if (manifest.sandbox !== wanted.sandbox || manifest.generation !== wanted.generation) {
    throw new Error(`the manifest is that of generation ${manifest.generation} of ${manifest.sandbox}`)
  }
  return manifest
}

const checksumOf = (text: string): string => createHash('sha256').update(text).digest('hex')
