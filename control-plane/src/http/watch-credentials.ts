/** What is remembered of credentials, and what access tokens have open, follows the database (migration 0001). */
import { listen } from '../db/listen.ts'
import type { Deps } from '../deps.ts'

export function watchCredentialChanges(deps: Deps, onConnected?: () => void): { close(): void } {
  return listen(
    deps.database.url,
    'credentials_changed',
    {
      onNotice: () => {
        deps.credentials.clear()
        deps.tokenStreams.check()
      },
      onConnected: () => {
        deps.credentials.hear(true)
        deps.tokenStreams.check()
        onConnected?.()
      },
      onLost: () => deps.credentials.hear(false),
    },
    deps.log,
  )
}
