/** What the host agent tells the control plane when it cannot do what it was told. */
import type { HostFailureCode } from '@warren/protocol'

const STATUS = {
  invalid: 400,
  not_found: 404,
  fence_lost: 409,
  no_capacity: 503,
  image_not_ready: 503,
  disk_too_small: 400,
  boot_failed: 500,
  guest_unreachable: 502,
  wrong_state: 409,
  pause_failed: 500,
  snapshot_damaged: 500,
  snapshot_missing: 500,
  snapshot_incompatible: 503,
  identity_failed: 500,
  port_closed: 502,
  too_many_streams: 429,
  internal: 500,
} as const satisfies Record<HostFailureCode, number>

export class HostError extends Error {
  override name = 'HostError'
  readonly code: HostFailureCode
  readonly status: number

  constructor(code: HostFailureCode, message: string, options?: ErrorOptions) {
    super(message, options)
    this.code = code
    this.status = STATUS[code]
  }
}
