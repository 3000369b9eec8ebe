/**
 * The error of a request to a host agent. Callers in sandboxes/ catch it. Its text about a saved state is written for
 * the owner of the sandbox and becomes the status reason; any other text is only logged.
 */
import type { HostFailureCode } from '@warren/protocol'

export type HostErrorCode =
  | HostFailureCode
  /** No connection, an interrupted one, or no response in time: the operation may or may not have happened. */
  | 'unreachable'

export class HostError extends Error {
  override name = 'HostError'
  readonly code: HostErrorCode

  constructor(code: HostErrorCode, message: string, options: { cause?: unknown } = {}) {
    super(message, options)
    this.code = code
  }
}

const REASON_MAX_CHARACTERS = 500

const REASONS: Partial<Record<HostErrorCode, string>> = {
  no_capacity: 'the host has no capacity left',
  disk_full: 'the disk of the host is full',
  image_not_ready: 'the image was not ready on the host',
  disk_too_small: 'the disk was too small for the image',
  boot_failed: 'the VM did not start',
  guest_unreachable: 'the agent in the VM did not answer',
  unreachable: 'the host did not answer in time',
  not_found: 'the host does not have the VM',
}

const SHOWN_TO_OWNERS: ReadonlySet<HostErrorCode> = new Set([
  'pause_failed',
  'snapshot_damaged',
  'snapshot_missing',
  'snapshot_incompatible',
  'identity_failed',
])

/** The `status_reason` of the sandbox. */
export function statusReason({ code, message }: HostError): string {
  if (SHOWN_TO_OWNERS.has(code)) return message.slice(0, REASON_MAX_CHARACTERS)
  return REASONS[code] ?? 'the host failed'
}
