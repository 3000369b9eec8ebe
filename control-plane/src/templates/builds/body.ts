/** The request that starts an attempt on a host. The plan is made again from the Dockerfile: it can be many times as large. */
import {
  HOST_BUILD_LOG_BYTES,
  HOST_NETWORK_DEFAULT,
  type HostBuildBody,
  type HostBuildStep,
  TEMPLATE_ROOTFS_MAX_BYTES,
} from '@warren/protocol'
import type { TemplateRow } from '../../db/schema.ts'
import type { Deps } from '../../deps.ts'
import { planTemplate } from '../plan.ts'
import { fixedRules } from '../rules.ts'
import { basesOf } from './shapes.ts'

/** Room for 5 GB of files, and for what steps write and delete again. */
const BUILD_DISK_MIB = 10_240

export async function createBuildBody({ config }: Deps, row: TemplateRow): Promise<HostBuildBody> {
  const { steps, notes } = await planTemplate(fixedRules(row), row.dockerfile)
  return {
    attempt: row.attempt,
    image: row.image,
    steps: steps as HostBuildStep[],
    env: row.env,
    notes,
    cache_owner: row.user_id,
    no_cache: row.no_cache,
    vcpu: config.buildVcpu,
    mem_mib: config.buildMemMib,
    cpu_quota_pct: config.buildVcpu * 100,
    disk_mib: BUILD_DISK_MIB,
    ip: row.ip!, // Held while it is building.
    network: {
      ...HOST_NETWORK_DEFAULT,
      bandwidth: { ...HOST_NETWORK_DEFAULT.bandwidth, quota_bytes: config.bandwidthQuotaBytes },
    },
    limits: {
      steps_ms: config.buildLimitSeconds * 1000,
      rootfs_bytes: TEMPLATE_ROOTFS_MAX_BYTES,
      log_bytes: HOST_BUILD_LOG_BYTES,
    },
    bases: basesOf(config.templateShapes),
  }
}
