/** A caller that hangs up before it has its whole answer. */
import type { FastifyReply } from 'fastify'

export class CallerGone extends Error {
  override name = 'CallerGone'
  constructor() {
    super('the caller has gone before its answer')
  }
}

/** Fires when the connection closes before the last byte of the answer was handed to it; never after. */
export function callerGone(reply: FastifyReply): AbortSignal {
  const controller = new AbortController()
  const { raw } = reply
  const leave = () => controller.abort(new CallerGone())
  raw.once('close', leave)
  raw.once('finish', () => raw.off('close', leave))
  if (raw.destroyed) leave()
  return controller.signal
}
