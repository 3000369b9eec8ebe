/** Outbound traffic quota of a sandbox. */
import { type Static, Type } from 'typebox'
import { SandboxId } from './ids.ts'

/** Quota of a new sandbox unless the installation configures another. */
export const BANDWIDTH_QUOTA_DEFAULT_BYTES = 5 * 1024 ** 3
/** Value of `quota_bytes` and `remaining_bytes` for a sandbox without a limit. */
export const BANDWIDTH_UNMETERED = -1
export const RECHARGE_MAX_BYTES = 100 * 1024 ** 3

export const BandwidthView = Type.Object({
  id: SandboxId,
  quota_bytes: Type.Integer({ description: 'Outbound bytes allowed in total; -1 for no limit.' }),
  used_bytes: Type.Integer({ description: 'Bytes sent since creation. A recharge does not reset it.' }),
  ingress_bytes: Type.Integer({ description: 'Bytes received since creation. They do not count against the quota.' }),
  remaining_bytes: Type.Integer({ description: 'Outbound bytes still allowed; -1 for no limit.' }),
  capped: Type.Boolean({ description: 'True while outbound packets are dropped because the quota is used up.' }),
})
export type BandwidthView = Static<typeof BandwidthView>

export const RechargeBody = Type.Object({
  add_bytes: Type.Integer({
    minimum: 1,
    maximum: RECHARGE_MAX_BYTES,
    description: 'Bytes to add to the quota, at most 100 GiB.',
  }),
})
export type RechargeBody = Static<typeof RechargeBody>

/** Usage can exceed the quota by packets already in flight. That leaves 0, never -1, which means no limit. */
export function remainingBytes(quotaBytes: number, usedBytes: number): number {
  if (quotaBytes === BANDWIDTH_UNMETERED) return BANDWIDTH_UNMETERED
  return Math.max(0, quotaBytes - usedBytes)
}
