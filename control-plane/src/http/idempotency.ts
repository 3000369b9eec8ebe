/**
 * Idempotency-Key on POSTs that create or charge (docs/api.md#idempotency).
 *
 * The first request with a key inserts a row that names this process, runs, and stores its response before sending it.
 * The same request with the same key gets the stored response, also after a restart; a different request with the key is
 * 409. A repetition that arrives while the first request is running waits for it. Only successes are stored: after a
 * failure nothing was created or charged, so the request may run again. If the process that ran it died, the next
 * request with the key takes the row over.
 *
 * An operation that must not run twice even if the process dies between its commit and the response calls
 * `storeResponse` in its own transaction.
 */
import { createHash } from 'node:crypto'
import { setTimeout as delay } from 'node:timers/promises'
import { badField, failure, unavailable } from '@warren/kit/failure'
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import { sql } from 'kysely'
import type { Db, Tx } from '../db/connect.ts'
import type { Deps } from '../deps.ts'
import { DEAD_AFTER_S } from '../jobs/processes.ts'
import { isSealed } from '../secrets/cipher.ts'
import { responsePlace } from '../secrets/places.ts'
import { callerKey } from './caller.ts'

export const RETENTION_HOURS = 24
/** Less than the 60 s after which common clients give up. */
const WAIT_LIMIT_MS = 50_000
const POLL_MS = 50

export type Claim = { caller: string; key: string; stored: boolean }

export function addIdempotency(app: FastifyInstance, deps: Deps): void {
  // Hooks on these routes only, so that the others do not pay for them.
  app.addHook('onRoute', (route) => {
    if (!route.config?.idempotent) return
    route.preHandler = [claimRequestKey, ...[route.preHandler ?? []].flat()]
    route.onSend = [storeOrRelease, ...[route.onSend ?? []].flat()]
  })

  async function claimRequestKey(request: FastifyRequest, reply: FastifyReply) {
    const key = request.headers['idempotency-key']
    if (key === undefined) return
    if (typeof key !== 'string' || !/^[\x21-\x7e]{1,255}$/.test(key)) {
      throw badField({ 'Idempotency-Key': 'must be 1 to 255 printable characters' })
    }
    return claimKey(deps, request, reply, { caller: callerKey(request.caller), key, stored: false })
  }

  async function storeOrRelease(request: FastifyRequest, reply: FastifyReply, payload: unknown) {
    const claim = request.idempotency
    if (!claim) return payload
    if (reply.statusCode >= 300 || typeof payload !== 'string') await release(deps, claim)
    else if (!claim.stored) await storeResponse(deps.db, claim, reply.statusCode, payload)
    return payload
  }
}

/** `payload` is the exact response body. If the transaction fails later, the response is not stored, as it should be. */
export async function storeResponse(db: Db | Tx, claim: Claim, status: number, payload: string): Promise<void> {
  await rowOf(db.updateTable('idempotency_keys').set({ status, answer: payload }), claim).execute()
  claim.stored = true
}

/**
 * For a request that fails although its operation continues: the key is retained, so that the operation can store the response
 * when it ends. A repetition before that runs again.
 */
export async function detachKey(db: Db | Tx, claim: Claim): Promise<void> {
  await rowOf(db.updateTable('idempotency_keys').set({ owner: 'none' }), claim)
    .where('status', 'is', null)
    .execute()
}

/** Whether the operation has stored its response since the request began. */
export async function hasResponse(db: Db | Tx, claim: Claim): Promise<boolean> {
  const row = await rowOf(db.selectFrom('idempotency_keys').select('status'), claim).executeTakeFirst()
  return row !== undefined && row.status !== null
}

/** For a response that contains a secret. */
export function storeSecretResponse(deps: Deps, tx: Tx, claim: Claim, status: number, payload: string): Promise<void> {
  return storeResponse(tx, claim, status, deps.secrets.seal(responsePlace(claim.caller, claim.key), payload))
}

/** All other responses are JSON, which never looks like a sealed text. */
const openAnswer = async (deps: Deps, claim: Claim, answer: string): Promise<string> =>
  isSealed(answer) ? deps.secrets.open(responsePlace(claim.caller, claim.key), answer) : answer

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
      const answer = await openAnswer(deps, claim, row.answer ?? '')
      return reply.code(row.status).header('Idempotent-Replayed', 'true').type('application/json').send(answer)
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

/** Takes the row over if its process died before it stored a response, or if the key has expired. */
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
 * Deletes the row after a failure. Not if a response is stored: then the transaction that stored it was committed. And
 * not if another process has taken the row over because it believed this one dead.
 */
const release = (deps: Deps, claim: Claim) =>
  rowOf(deps.db.deleteFrom('idempotency_keys'), claim)
    .where('status', 'is', null)
    .where('owner', '=', deps.processId)
    .execute()

// Kysely's select, update and delete builders each declare their own `where`.
// biome-ignore lint/suspicious/noExplicitAny: the three builders have no common type to name.
const rowOf = <Query extends { where: (...args: any[]) => any }>(
  query: Query,
  claim: Claim,
): ReturnType<Query['where']> => query.where('caller', '=', claim.caller).where('key', '=', claim.key)

function hashRequest(request: FastifyRequest): Buffer {
  const text = `${request.method} ${request.routeOptions.url} ${canonical(request.params)} ${canonical(request.body)}`
  return createHash('sha256').update(text).digest()
}

/** The same text for equal values, whatever the order of their fields. */
function canonical(value: unknown): string {
  if (Array.isArray(value)) return `[${value.map(canonical).join()}]`
  if (typeof value !== 'object' || value === null) return JSON.stringify(value) ?? 'null'
  const fields = Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1))
  return `{${fields.map(([key, field]) => `${JSON.stringify(key)}:${canonical(field)}`).join()}}`
}
