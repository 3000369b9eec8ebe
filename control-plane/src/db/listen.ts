/**
 * Receives PostgreSQL notifications (LISTEN) on a dedicated connection, and reconnects when it is lost. Notifications
 * sent while disconnected are missed, so a listener that must not miss any is notified of both transitions.
 */
import type { Log } from '@warren/kit/log'
import pg from 'pg'

export type Listener = {
  onNotification: (payload: string) => void
  /** From now on no notification is missed. Earlier ones may have been. */
  onConnected?: () => void
  onDisconnected?: () => void
}

const RETRY_MIN_MS = 100
const RETRY_MAX_MS = 5_000
/** A connection can die without being closed, for example when a cable is pulled; a query detects that. */
const CHECK_EVERY_MS = 10_000

export function listen(url: string, channel: string, listener: Listener, log: Pick<Log, 'warn'>): { close(): void } {
  let closed = false
  let retryMs = RETRY_MIN_MS
  let timer: NodeJS.Timeout | undefined
  let current: pg.Client | undefined

  async function connect(): Promise<void> {
    const connection = new pg.Client({
      connectionString: url,
      application_name: `warren listens to ${channel}`,
      keepAlive: true,
      connectionTimeoutMillis: 5_000,
      query_timeout: 5_000,
    })
    current = connection
    connection.on('error', (error) => handleLoss(connection, error))
    connection.on('end', () => handleLoss(connection, new Error('connection ended')))
    connection.on('notification', (message) => listener.onNotification(message.payload ?? ''))
    try {
      await connection.connect()
      await connection.query(`listen ${connection.escapeIdentifier(channel)}`)
      if (closed || current !== connection) return void connection.end().catch(() => {})
      retryMs = RETRY_MIN_MS
      listener.onConnected?.()
      scheduleCheck(connection)
    } catch (error) {
      handleLoss(connection, error)
    }
  }

  function scheduleCheck(connection: pg.Client): void {
    timer = setTimeout(() => {
      connection.query('select 1').then(
        () => current === connection && !closed && scheduleCheck(connection),
        (error) => handleLoss(connection, error),
      )
    }, CHECK_EVERY_MS)
    timer.unref()
  }

  function handleLoss(connection: pg.Client, error: unknown): void {
    if (closed || current !== connection) return
    current = undefined
    clearTimeout(timer)
    connection.end().catch(() => {})
    listener.onDisconnected?.()
    log.warn({ err: error, channel }, 'lost the connection for database notifications, reconnecting')
    timer = setTimeout(connect, retryMs)
    retryMs = Math.min(retryMs * 2, RETRY_MAX_MS)
  }

  void connect()
  return {
    close() {
      closed = true
      clearTimeout(timer)
      current?.end().catch(() => {})
    },
  }
}
