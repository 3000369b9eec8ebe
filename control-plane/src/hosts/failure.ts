/** What a host agent answered, or that it did not. Caught by the verbs; none of its text reaches a client. */
import type { HostFailureCode } from '@warren/protocol'

export type HostErrorCode =
  | HostFailureCode
  /** No connection, a cut one, or no answer in time: what was asked may or may not have happened. */
  | 'unreachable'

export class HostError extends Error {
  override name = 'HostError'
  readonly code: HostErrorCode

  constructor(code: HostErrorCode, message: string, options: { cause?: unknown } = {}) {
    super(message, options)
    this.code = code
  }
}
