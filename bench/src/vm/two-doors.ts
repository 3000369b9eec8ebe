/** A sandbox and a bare machine of the same shape, each with its door, for as long as a row measures. */
import { type BareVm, bootBareVm } from '../../../host-agent/src/testing/bare-vm.ts'
import type { Measurement, Run } from '../row.ts'
import { bareParts } from './bare-parts.ts'
import { SMALL, vmBox } from './box.ts'
import { apiDoor, bareDoor, type Door } from './door.ts'

export const BARE_PORT = "guest agent's bare port"

export async function withTwoDoors(
  run: Run,
  measure: (ours: Door, baseline: Door, bare: BareVm) => Promise<Measurement>,
): Promise<Measurement> {
  const { api } = await run.open(vmBox)
  const bare = await bootBareVm(await run.open(bareParts), { vcpu: 1, mem_mib: 256 })
  try {
    const { id } = await api.create(SMALL)
    try {
      return await measure(apiDoor(api, id), bareDoor(bare), bare)
    } finally {
      await api.delete(id)
    }
  } finally {
    await bare.stop()
  }
}
