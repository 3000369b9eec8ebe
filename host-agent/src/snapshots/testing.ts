/** Creates a generation for tests, in which every object is a small file that contains its own id. */
import { writeFile } from 'node:fs/promises'
import { crc32 } from 'node:zlib'
import type { Manifest } from './manifest.ts'
import type { SnapshotStore } from './store.ts'

/** `names` are the ids of the memory, the device state and each disk layer. */
export async function makeManifest(
  store: SnapshotStore,
  sandbox: string,
  generation: number,
  names: string[],
): Promise<Manifest> {
  for (const name of names) await writeFile(store.fileOf(name), name)
  const [memory, state, ...disk] = names.map((id) => ({ id, bytes: id.length, crcs: [crc32(id)] }))
  return {
    format: 1,
    sandbox,
    generation,
    saved_at: '2026-01-02T03:04:05.000Z',
    needs: {
      base: 'b',
      baseId: 'i',
      machine: { version: '7.2.0', type: 'pc-q35-7.2', accel: 'tcg', cpu: 'max' },
      devices: [],
      shape: { vcpu: 1, mem_mib: 256 },
    },
    disk_mib: 1024,
    memory: { ...memory!, data_bytes: 0, dirty_bytes: 0, over: 'base' },
    state: state!,
    disk,
  }
}
