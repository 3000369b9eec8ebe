/**
 * The logger of a process: JSON lines in production, readable text on a terminal.
 *
 * Secrets are not logged: request logs contain route patterns and ids, never headers, bodies or query strings. The
 * redaction below is a second safeguard for objects that are logged completely.
 */
import { type DestinationStream, type Logger, pino } from 'pino'
import pretty from 'pino-pretty'

export type Log = Logger

const SECRET_NAMES = [
  'authorization',
  'x-api-key',
  'x-auth-token',
  'x-access-token',
  'cookie',
  'token',
  'secret',
  'password',
  'secret_key',
  'access_key',
  'credentials',
  'envs',
  'apiKey',
]

const quoted = (name: string) => `["${name}"]`

export function createLog(options: {
  name: string
  level: string
  format: 'json' | 'pretty'
  destination?: DestinationStream
}): Log {
  const settings = {
    name: options.name,
    level: options.level,
    base: undefined,
    redact: {
      paths: SECRET_NAMES.flatMap((name) => [quoted(name), `*${quoted(name)}`, `*.*${quoted(name)}`]),
      censor: '[secret]',
    },
  }
  const destination = options.destination ?? openStdout()
  if (options.format === 'json') return pino(settings, destination)
  // Synchronous and in this process: a worker thread would lose the last lines before a crash.
  const stream = pretty({
    ignore: 'pid,hostname',
    translateTime: 'HH:MM:ss.l',
    sync: true,
    destination,
  })
  return pino(settings, stream)
}

/** Of lines that could not be written, which are kept for the next attempt. More are dropped. */
const UNWRITTEN_MAX_BYTES = 1024 * 1024

/**
 * On a full disk every write fails, as after the terminal was closed or the reader has exited. That must neither end the process
 * nor interrupt a clean stop.
 */
function openStdout(): DestinationStream {
  const stdout = pino.destination({ fd: 1, sync: true, maxLength: UNWRITTEN_MAX_BYTES })
  stdout.on('error', () => {})
  return stdout
}

/** `auto` is `pretty` on a terminal and `json` everywhere else. */
export function logFormat(configured: 'auto' | 'json' | 'pretty', isTerminal: boolean): 'json' | 'pretty' {
  if (configured !== 'auto') return configured
  return isTerminal ? 'pretty' : 'json'
}
