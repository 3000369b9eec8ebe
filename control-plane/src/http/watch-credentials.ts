/**
 * Keeps what this process knows of credentials in step with the database: triggers send `credentials_changed` when a
 * user, API key or access token changes (migration 0001_house.sql).
 */
import { listen } from '../db/listen.ts'
import type { Deps } from '../deps.ts'

export function watchCredentialChanges(deps: Deps, onConnected?: () => void): { close(): void } {
  return listen(
    deps.database.url,
    'credentials_changed',
    {
      onNotification: () => {
        deps.credentials.clear()
        deps.tokenStreams.check()
      },
      onConnected: () => {
        deps.credentials.setEnabled(true)
        deps.tokenStreams.check()
        onConnected?.()
      },
      onDisconnected: () => deps.credentials.setEnabled(false),
    },
    deps.log,
  )
}
