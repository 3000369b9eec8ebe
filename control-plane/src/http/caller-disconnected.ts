/** Detects that the caller closed the connection before the whole response was sent. */
import type { FastifyReply } from 'fastify'

export class CallerDisconnected extends Error {
  override name = 'CallerDisconnected'
  constructor() {
    super('the caller disconnected before the end of the response')
  }
}

/** The signal aborts when the connection closes before the last byte of the response was written; never after that. */
export function callerDisconnected(reply: FastifyReply): AbortSignal {
  const controller = new AbortController()
  const { raw } = reply
  const abort = () => controller.abort(new CallerDisconnected())
  raw.once('close', abort)
  raw.once('finish', () => raw.off('close', abort))
  if (raw.destroyed) abort()
  return controller.signal
}
