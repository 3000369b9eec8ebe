/** Builds a base on request, before a create needs it. */
import { errorText } from '@warren/kit/error-text'
import type { HostBaseBody, HostBasePrepared } from '@warren/protocol'
import type { Deps } from '../deps.ts'
import { HostError } from '../host-error.ts'
import { getImage } from '../images/get-image.ts'
import { ensureBase } from './ensure.ts'

export async function prepareBase(deps: Deps, request: HostBaseBody): Promise<HostBasePrepared> {
  const startedAt = performance.now()
  const { vcpu, mem_mib, disk_mib } = request
  const image = await getImage(deps, request)
  deps.volume.checkFloor('a base')
  if (mem_mib > deps.config.memMib) {
    throw new HostError('no_capacity', `the base needs ${mem_mib} MiB, and this host has ${deps.config.memMib} MiB`)
  }
  try {
    const { base, isBooted } = await ensureBase(deps, image, { vcpu, mem_mib }, disk_mib)
    return { key: base.key, booted: isBooted, took_ms: Math.round(performance.now() - startedAt) }
  } catch (error) {
    throw new HostError('boot_failed', errorText(error), { cause: error })
  }
}
