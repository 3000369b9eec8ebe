/**
 * Idempotency-Key on POSTs that create or charge.
 *
 * The first request with a key writes a row that names this process, runs, and stores its answer before sending it.
 * The same key and request later gets that answer again, also after a restart; another request with the key is 409.
 * One that comes while the first is running waits for it. Only successes are kept: after a failure nothing was
 * created or charged, so trying again is right. If the process that ran it died, the next request takes over.
 *
 * A verb that must not run twice even if the process dies between its commit and the answer stores the answer in its
 * own transaction, with `storeResponse`.
 */
import { createHash } from 'node:crypto'
import { setTimeout as delay } from 'node:timers/promises'
import { badField, failure, unavailable } from '@warren/kit/failure'
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import { sql } from 'kysely'
import type { Db, Tx } from '../db/connect.ts'
import type { Deps } from '../deps.ts'
import { DEAD_AFTER_S } from '../jobs/processes.ts'
import { callerKey } from './caller.ts'

export const RETENTION_HOURS = 24
/** Clients give up at 60 s (wire 1.4). */
const WAIT_LIMIT_MS = 50_000
const POLL_MS = 50

export type Claim = { caller: string; key: string; stored: boolean }

export function honourIdempotencyKeys(app: FastifyInstance, deps: Deps): void {
  // Only where it is asked for: every other route would pay for it with each request.
  app.addHook('onRoute', (route) => {
    if (!route.config?.idempotent) return
    route.preHandler = [claimIfAsked, ...[route.preHandler ?? []].flat()]
    route.onSend = [keepAnswer, ...[route.onSend ?? []].flat()]
  })

  async function claimIfAsked(request: FastifyRequest, reply: FastifyReply) {
    const key = request.headers['idempotency-key']
    if (key === undefined) return
    if (typeof key !== 'string' || !/^[\x21-\x7e]{1,255}$/.test(key)) {
      throw badField({ 'Idempotency-Key': 'must be 1 to 255 printable characters' })
    }
    return claimKey(deps, request, reply, { caller: callerKey(request.caller), key, stored: false })
  }

  async function keepAnswer(request: FastifyRequest, reply: FastifyReply, payload: unknown) {
    const claim = request.idempotency
    if (!claim) return payload
    if (reply.statusCode >= 300 || typeof payload !== 'string') await forget(deps, claim)
    else if (!claim.stored) await storeResponse(deps.db, claim, reply.statusCode, payload)
    return payload
  }
}

/** `payload` is the exact body that goes out. In a transaction that fails later it was never stored, and nothing is lost. */
export async function storeResponse(db: Db | Tx, claim: Claim, status: number, payload: string): Promise<void> {
  await rowOf(db.updateTable('idempotency_keys').set({ status, answer: payload }), claim).execute()
  claim.stored = true
}

async function claimKey(deps: Deps, request: FastifyRequest, reply: FastifyReply, claim: Claim) {
  const requestHash = hashRequest(request)
  for (const deadline = Date.now() + WAIT_LIMIT_MS; Date.now() < deadline; await delay(POLL_MS)) {
    if ((await insert(deps, claim, requestHash)) || (await takeOver(deps, claim, requestHash))) {
      request.idempotency = claim
      return
    }
    const row = await rowOf(deps.db.selectFrom('idempotency_keys').selectAll(), claim).executeTakeFirst()
    if (!row) continue
    if (!row.request_hash.equals(requestHash)) {
      throw failure('idempotency_key_reused', `Idempotency-Key ${claim.key} was used for another request`)
    }
    if (row.status !== null) {
      return reply.code(row.status).header('Idempotent-Replayed', 'true').type('application/json').send(row.answer)
    }
  }
  throw unavailable('the first request with this Idempotency-Key is still running', { retryAfterSeconds: 2 })
}

async function insert(deps: Deps, claim: Claim, requestHash: Buffer): Promise<boolean> {
  const row = await deps.db
    .insertInto('idempotency_keys')
    .values({ caller: claim.caller, key: claim.key, request_hash: requestHash, owner: deps.processId })
    .onConflict((conflict) => conflict.columns(['caller', 'key']).doNothing())
    .returning('key')
    .executeTakeFirst()
  return row !== undefined
}

/** From a process that died before it answered, or from a key past its time. */
async function takeOver(deps: Deps, claim: Claim, requestHash: Buffer): Promise<boolean> {
  const { rows } = await sql`
    update idempotency_keys set owner = ${deps.processId}, request_hash = ${requestHash},
      status = null, answer = null, created_at = now()
    where caller = ${claim.caller} and key = ${claim.key}
      and (created_at < now() - make_interval(hours => ${RETENTION_HOURS})
        or (status is null and request_hash = ${requestHash} and owner <> ${deps.processId} and not exists (
          select from service_processes
          where id = owner and seen_at > now() - make_interval(secs => ${DEAD_AFTER_S}))))
    returning key`.execute(deps.db)
  return rows.length > 0
}

/**
 * An answer that is stored stays: the transaction that stored it happened. And a key that was taken over, because this
 * process was thought dead, is no longer ours to free.
 */
const forget = (deps: Deps, claim: Claim) =>
  rowOf(deps.db.deleteFrom('idempotency_keys'), claim)
    .where('status', 'is', null)
    .where('owner', '=', deps.processId)
    .execute()

// Each of Kysely's builders has its own `where`; what they share is only this shape.
// biome-ignore lint/suspicious/noExplicitAny: the three builders have no common type to name.
const rowOf = <Query extends { where: (...args: any[]) => any }>(
  query: Query,
  claim: Claim,
): ReturnType<Query['where']> => query.where('caller', '=', claim.caller).where('key', '=', claim.key)

function hashRequest(request: FastifyRequest): Buffer {
  const text = `${request.method} ${request.routeOptions.url} ${canonical(request.params)} ${canonical(request.body)}`
  return createHash('sha256').update(text).digest()
}

/** Equal for equal values, whatever the order of their fields. */
function canonical(value: unknown): string {
  if (Array.isArray(value)) return `[${value.map(canonical).join()}]`
  if (typeof value !== 'object' || value === null) return JSON.stringify(value) ?? 'null'
  const fields = Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1))
  return `{${fields.map(([key, one]) => `${JSON.stringify(key)}:${canonical(one)}`).join()}}`
}
