/**
 * Ownership before the body (wire 19): an absent or foreign sandbox is 404, whatever else is wrong with the request.
 */
import { notFound } from '@warren/kit/failure'
import type { FastifyRequest } from 'fastify'
import type { Deps } from '../deps.ts'
import { findOwnSandbox } from '../sandboxes/queries.ts'

export function ownSandbox(deps: Deps) {
  return async (request: FastifyRequest): Promise<void> => {
    const { id } = request.params as { id: string }
    const sandbox = await findOwnSandbox(deps, request.caller.user.id, id)
    if (!sandbox) throw notFound('sandbox')
    request.sandbox = sandbox
  }
}
