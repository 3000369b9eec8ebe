/** A sandbox and a bare VM of the same shape, each with its way into the guest, for the duration of a measurement. */
import { type BareVm, bootBareVm } from '../../../host-agent/src/testing/bare-vm.ts'
import type { Comparison, Measurement, Run, Turn } from '../row.ts'
import { bareParts } from './bare-parts.ts'
import { apiAccess, bareAccess, type GuestAccess } from './guest-access.ts'
import { instance, SMALL } from './instance.ts'

export const BARE_PORT = "guest agent's bare port"

export async function withSandboxAndBareVm(
  run: Run,
  measure: (ours: GuestAccess, baseline: GuestAccess, bare: BareVm) => Promise<Measurement>,
): Promise<Measurement> {
  const { api } = await run.open(instance)
  const bare = await bootBareVm(await run.open(bareParts), { vcpu: 1, mem_mib: 256 })
  try {
    const { id } = await api.create(SMALL)
    try {
      return await measure(apiAccess(api, id), bareAccess(bare), bare)
    } finally {
      await api.delete(id)
    }
  } finally {
    await bare.stop()
  }
}

/** The comparison of a row that measures one sandbox. `open` prepares it and returns what takes a turn. */
export function compareGuests(open: (run: Run, guest: GuestAccess) => Promise<() => Promise<Turn>>): Comparison {
  return {
    async open(run, api) {
      const { id } = await api.create(SMALL)
      return { takeTurn: await open(run, apiAccess(api, id)), close: () => api.delete(id) }
    },
  }
}
