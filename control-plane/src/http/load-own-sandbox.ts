/**
 * A preValidation hook for routes of one sandbox. It runs before the body is validated, so a sandbox that is absent or
 * belongs to another user is 404 whatever else is wrong with the request.
 */
import { notFound } from '@warren/kit/failure'
import type { FastifyReply, FastifyRequest } from 'fastify'
import type { Deps } from '../deps.ts'
import { findOwnSandbox } from '../sandboxes/queries.ts'

/** A callback instead of an async hook: it runs for every request to a sandbox, and an extra promise is measurable. */
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
