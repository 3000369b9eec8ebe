/** A failure that the host agent reports to the control plane, with its code. */
import { HOST_FAILURE_STATUS, type HostFailureCode } from '@warren/protocol'

export class HostError extends Error {
  override name = 'HostError'
  readonly code: HostFailureCode
  readonly status: number

  constructor(code: HostFailureCode, message: string, options?: ErrorOptions) {
    super(message, options)
    this.code = code
    this.status = HOST_FAILURE_STATUS[code]
  }
}
