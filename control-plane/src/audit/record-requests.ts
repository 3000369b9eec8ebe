/**
 * Records calls that change something, after their outcome is known and before the response is sent. Hooks are added to the
 * routes of the table only (actions.ts), so reads do not pay for them.
 *
 * Not recorded: requests without a valid credential, which have no account, and rate-limited ones, which would let a caller
 * fill the log. Connections that are upgraded have no response; they are recorded when they begin.
 */
import { newId } from '@warren/protocol'
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import type { Deps } from '../deps.ts'
import type { Caller } from '../http/caller.ts'
import { AUDITED_ROUTES, type RouteAudit } from './actions.ts'
import { runWithAuditId } from './context.ts'
import type { NewAuditEntry } from './log.ts'

export function recordRequests(app: FastifyInstance, deps: Deps): void {
  app.addHook('onRoute', (route) => {
    const method = String(route.method)
    const listed = AUDITED_ROUTES[`${method} ${route.url}`]
    const isRead = method === 'GET' || method === 'HEAD'
    if (listed === 'unrecorded' || (listed === undefined && isRead)) return
    const audit: RouteAudit = listed ?? { action: `${method} ${route.url}` }
    route.preHandler = [enter, ...[route.preHandler ?? []].flat()]
    route.onSend = [...[route.onSend ?? []].flat(), (...args: OnSend) => recordResponse(deps, audit, ...args)]
  })

  /** Here and not earlier: reading the body loses the context. */
  function enter(request: FastifyRequest, _reply: FastifyReply, done: () => void): void {
    request.auditId = newId('auditEntry')
    runWithAuditId(request.auditId, done)
  }
}

type OnSend = [FastifyRequest, FastifyReply, unknown]

async function recordResponse(
  deps: Deps,
  audit: RouteAudit,
  request: FastifyRequest,
  reply: FastifyReply,
  payload: unknown,
) {
  if (!request.caller) return payload
  const status = reply.statusCode
  const body = needsBody(audit, status) && typeof payload === 'string' ? parseBody(payload) : undefined
  const code = status < 400 ? undefined : body?.data?.code
  if (code === 'rate_limited') return payload
  const written = deps.audit.record(entryOf(deps, audit, request, { status, code, createdId: body?.data?.id }))
  if (!audit.inGuest) await written
  return payload
}

/**
 * Called when a connection is upgraded (http/upgrade.ts). `code` is for something that the owner should notice.
 * Connections of the plan `internal` are requests of visitors to deployed apps (docs/decisions/0040-apps-through-tunnels.md).
 */
export function recordUpgrade(deps: Deps, request: FastifyRequest, code?: string): void {
  if (request.caller?.user.plan === 'internal') return
  const audit = AUDITED_ROUTES[`${request.method} ${request.routeOptions.url}`]
  if (audit === undefined || audit === 'unrecorded') return
  void deps.audit.record(entryOf(deps, audit, request, { status: 101, code }))
}

const needsBody = (audit: RouteAudit, status: number): boolean => status >= 400 || audit.created === true

type Body = { data?: { id?: string; code?: string } }

function parseBody(payload: string): Body | undefined {
  try {
    return JSON.parse(payload) as Body
  } catch {
    return undefined // Not one of our responses: without an id or a code.
  }
}

type Result = { status: number; code?: string | undefined; createdId?: string | undefined }

function entryOf(deps: Deps, audit: RouteAudit, request: FastifyRequest, result: Result): NewAuditEntry {
  const { id, idOrName } = (request.params ?? {}) as { id?: string; idOrName?: string }
  const target = audit.created ? result.createdId : (id ?? idOrName)
  return {
    ...actorOf(request.caller),
    id: request.auditId ?? newId('auditEntry'),
    at: deps.now(),
    action: audit.action,
    target: target ?? null,
    outcome: result.status < 400 ? 'success' : result.status < 500 ? 'fail' : 'error',
    status: result.status,
    code: result.code ?? null,
    request_id: request.id,
  }
}

export const actorOf = (caller: Caller) => ({
  user_id: caller.user.id,
  actor_kind: caller.kind,
  actor: caller.user.id,
  credential: caller.credential,
})
