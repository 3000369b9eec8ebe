/**
 * One connection that listens. It reconnects by itself; whoever depends on hearing everything is told when
 * hearing begins and when it ends.
 */
import type { Log } from '@warren/kit/log'
import pg from 'pg'

export type Listener = {
  onNotice: (payload: string) => void
  /** Nothing is missed from here on; what happened before may have been. */
  onConnected?: () => void
  onLost?: () => void
}

const RETRY_MIN_MS = 100
const RETRY_MAX_MS = 5_000
/** A connection that died without a word (a pulled cable) is noticed by asking. */
const CHECK_EVERY_MS = 10_000

export function listen(url: string, channel: string, listener: Listener, log: Pick<Log, 'warn'>): { close(): void } {
  let closed = false
  let retryMs = RETRY_MIN_MS
  let timer: NodeJS.Timeout | undefined
  let client: pg.Client | undefined

  async function connect(): Promise<void> {
    const mine = new pg.Client({
      connectionString: url,
      application_name: `warren listens to ${channel}`,
      keepAlive: true,
      connectionTimeoutMillis: 5_000,
      query_timeout: 5_000,
    })
    client = mine
    mine.on('error', (error) => lose(mine, error))
    mine.on('end', () => lose(mine, new Error('connection ended')))
    mine.on('notification', (message) => listener.onNotice(message.payload ?? ''))
    try {
      await mine.connect()
      await mine.query(`listen ${mine.escapeIdentifier(channel)}`)
      if (closed || client !== mine) return void mine.end().catch(() => {})
      retryMs = RETRY_MIN_MS
      listener.onConnected?.()
      checkLater(mine)
    } catch (error) {
      lose(mine, error)
    }
  }

  function checkLater(mine: pg.Client): void {
    timer = setTimeout(() => {
      mine.query('select 1').then(
        () => client === mine && !closed && checkLater(mine),
        (error) => lose(mine, error),
      )
    }, CHECK_EVERY_MS)
    timer.unref()
  }

  function lose(mine: pg.Client, error: unknown): void {
    if (closed || client !== mine) return
    client = undefined
    clearTimeout(timer)
    mine.end().catch(() => {})
    listener.onLost?.()
    log.warn({ err: error, channel }, 'stopped hearing the database, trying again')
    timer = setTimeout(connect, retryMs)
    retryMs = Math.min(retryMs * 2, RETRY_MAX_MS)
  }

  void connect()
  return {
    close() {
      closed = true
      clearTimeout(timer)
      client?.end().catch(() => {})
    },
  }
}
