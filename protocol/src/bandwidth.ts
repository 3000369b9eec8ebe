/** Outbound budget of a sandbox (spec 2.10, 4.8; wire 10). */
import { type Static, Type } from 'typebox'
import { SandboxId } from './ids.ts'

/** What a sandbox starts with unless the deployment says otherwise. */
export const BANDWIDTH_QUOTA_DEFAULT_BYTES = 5 * 1024 ** 3
/** As a quota: no limit. Then `remaining_bytes` is the same. */
export const BANDWIDTH_UNMETERED = -1
export const RECHARGE_MAX_BYTES = 100 * 1024 ** 3

export const BandwidthView = Type.Object({
  id: SandboxId,
  quota_bytes: Type.Integer({ description: '-1: unmetered.' }),
  used_bytes: Type.Integer({ description: 'Sent since creation; a recharge does not reset it.' }),
  ingress_bytes: Type.Integer({ description: 'Received; costs no quota.' }),
  remaining_bytes: Type.Integer({ description: '-1: unmetered.' }),
  capped: Type.Boolean({ description: 'What it sends is being dropped.' }),
})
export type BandwidthView = Static<typeof BandwidthView>

export const RechargeBody = Type.Object({ add_bytes: Type.Integer({ minimum: 1, maximum: RECHARGE_MAX_BYTES }) })
export type RechargeBody = Static<typeof RechargeBody>

/** Use may pass the quota by what was under way when it was reached; that is 0 left, not -1 for unmetered. */
export function remainingBytes(quotaBytes: number, usedBytes: number): number {
  if (quotaBytes === BANDWIDTH_UNMETERED) return BANDWIDTH_UNMETERED
  return Math.max(0, quotaBytes - usedBytes)
}
