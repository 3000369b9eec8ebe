/** Why a build failed, for its user. */
import type { HostBuildFailure } from '@warren/protocol'

export class BuildFailure extends Error {
  override name = 'BuildFailure'
  readonly code: HostBuildFailure

  constructor(code: HostBuildFailure, message: string, options?: ErrorOptions) {
    super(message, options)
    this.code = code
  }
}
