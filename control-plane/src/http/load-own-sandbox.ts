/**
 * Ownership before the body (wire 19): an absent or foreign sandbox is 404, whatever else is wrong with the request.
 */
import { notFound } from '@warren/kit/failure'
import type { FastifyReply, FastifyRequest } from 'fastify'
import type { Deps } from '../deps.ts'
import { findOwnSandbox } from '../sandboxes/queries.ts'

/** By callback: every request for one sandbox passes here, and each promise between costs. */
export function loadOwnSandbox(deps: Deps) {
  return (request: FastifyRequest, _reply: FastifyReply, done: (error?: Error) => void): void => {
    const { id } = request.params as { id: string }
    findOwnSandbox(deps, request.caller.user.id, id).then((sandbox) => {
      if (!sandbox) return done(notFound('sandbox'))
      request.sandbox = sandbox
      done()
    }, done)
  }
}
