/** A caller that hangs up before it has its whole answer. */
import type { FastifyReply } from 'fastify'

export class CallerDisconnected extends Error {
  override name = 'CallerDisconnected'
  constructor() {
    super('the caller has gone before its answer')
  }
}

/** Fires when the connection closes before the last byte of the answer was handed to it; never after. */
export function callerDisconnected(reply: FastifyReply): AbortSignal {
  const controller = new AbortController()
  const { raw } = reply
  const leave = () => controller.abort(new CallerDisconnected())
  raw.once('close', leave)
  raw.once('finish', () => raw.off('close', leave))
  if (raw.destroyed) leave()
  return controller.signal
}
