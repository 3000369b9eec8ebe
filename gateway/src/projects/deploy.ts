/**
 * Accepts a deploy request: checks, payment, credit, rows. Authentication and the body come before (projects/routes.ts).
 *
 *   1. the name is free or the wallet's own, and the wallet is within its limits. Nothing is asked or taken otherwise
 *   2. with X-Payment-Tx: the headers are well formed, the hash was not used, and the chain confirms the payment.
 *      With an authorization (x402, MPP): it is needed, because credit does not cover the price; it is valid; it is brought to
 *      the chain, which confirms it (settlements/settle.ts)
 *   3. one transaction, under the lock of the wallet: payment row, ledger entry, decision, project and deployment
 *
 * The rows of project and deployment are in a savepoint. When they cannot be written after a good payment, the payment is
 * committed without them: the money is then in the wallet's credit, with which the request can be repeated. A process that
 * dies before the commit has consumed nothing.
 */
import type { IncomingHttpHeaders } from 'node:http'
import { crashPoint } from '@warren/kit/crash-point'
import { sql } from 'kysely'
import { type Tx, violatedKey } from '../db/connect.ts'
import type { ProjectRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { GatewayError, nameTaken } from '../http/errors.ts'
import { type Decision, decide, type Situation } from '../payments/decide.ts'
import { type PaymentHeaders, parsePaymentHeaders } from '../payments/headers.ts'
import { addEntry, createAndLockWallet, lockWalletOrCountZero } from '../payments/pool.ts'
import { deleteQuotes, type QuoteKey, saveQuote } from '../payments/quotes.ts'
import { alreadyProcessed, assignPayments, recordPayment } from '../payments/record.ts'
import { paymentRequired } from '../payments/requirement.ts'
import { parseCredential } from '../settlements/credential.ts'
import { renderOffers } from '../settlements/offers.ts'
import { renderReceipt } from '../settlements/receipt.ts'
import { markSettled } from '../settlements/reconcile.ts'
import type { ParsedBody } from '../uploads/parse-body.ts'
import { storeUpload } from '../uploads/store.ts'
import { findProjectByName } from './find.ts'
import { checkWalletLimits } from './limits.ts'
import { type Presented, presentCredential, presentHash } from './present.ts'
import { type Bought, findSameRequest, readSituation } from './situation.ts'
import { writeRows } from './write-rows.ts'

export type Accepted = { projectId: string; deploymentId: string; status: 'deploying'; message: string }
export type DeployAnswer = { accepted: Accepted; headers: Record<string, string> }

export async function deploy(
  deps: Deps,
  wallet: string,
  requestHeaders: IncomingHttpHeaders,
  body: ParsedBody,
): Promise<DeployAnswer> {
  const project = await checkRequest(deps.db, deps, wallet, body)
  const credential = parseCredential(requestHeaders)
  const headers = parsePaymentHeaders(requestHeaders)
  const presented = credential
    ? await presentCredential(deps, wallet, headers, body, project, credential)
    : await presentHash(deps, wallet, headers)
  const receipt =
    presented.settlement && presented.payment
      ? renderReceipt(deps, presented.settlement, presented.payment.hash)
      : undefined
  try {
    return { accepted: await accept(deps, wallet, headers, body, presented), headers: receipt ?? {} }
  } catch (error) {
    // The client must learn that it has paid, whatever happened afterwards.
    if (receipt && error instanceof GatewayError) Object.assign(error.headers, receipt)
    throw error
  }
}

type Outcome =
  | { kind: 'accepted'; bought: Bought; warnings: string[] }
  | { kind: 'asked'; error: GatewayError }
  /** The payment is committed and the rows are not. */
  | { kind: 'not written'; cause: unknown }

/** Step 3. Exported for tests of the money, which make up payments. */
export async function accept(
  deps: Deps,
  wallet: string,
  headers: PaymentHeaders,
  body: ParsedBody,
  presented: Presented,
): Promise<Accepted> {
  const outcome = await deps.db
    .transaction()
    .execute((tx) => acceptInTransaction(tx, deps, wallet, headers, body, presented))
  if (presented.payment) {
    const labels = { transport: presented.settlement?.transport ?? 'transfer', chain: presented.payment.chain.name }
    deps.metrics.payments.inc(labels)
  }
  if (outcome.kind === 'asked') throw outcome.error
  if (outcome.kind === 'not written') throw rowsNotWritten(deps, outcome.cause)
  return {
    ...outcome.bought,
    status: 'deploying',
    message: ['Deployment started. Poll status for updates.', ...outcome.warnings].join(' '),
  }
}

async function acceptInTransaction(
  tx: Tx,
  deps: Deps,
  wallet: string,
  headers: PaymentHeaders,
  body: ParsedBody,
  { payment, refused, settlement }: Presented,
): Promise<Outcome> {
  const poolMicro = payment ? await createAndLockWallet(tx, wallet) : await lockWalletOrCountZero(tx, deps, wallet)
  const project = await checkRequest(tx, deps, wallet, body)
  const key: QuoteKey = { wallet, uniqueName: body.uniqueName, months: body.months }
  // Before the payment is recorded, which would be counted twice.
  const before = await readSituation(tx, deps, wallet, headers, body, project, poolMicro)
  const situation = { ...before, paidMicro: payment?.amountMicro ?? (refused === undefined ? undefined : 0n) }
  if (payment) {
    if (settlement && !(await markSettled(tx, settlement.id))) throw alreadyProcessed()
    await recordPayment(tx, payment, key, deps.now())
    await addEntry(tx, { kind: 'payment', wallet, amountMicro: payment.amountMicro, hash: payment.hash })
    await crashPoint('deploy.paid')
  }
  const decision = decide(situation)
  if (decision.kind === 'asked') {
    const { countsPool } = decision
    await saveQuote(tx, deps, key, { priceMicro: situation.priceMicro, countsPool })
  }
  if (refused !== undefined) return ask(deps, headers, body, situation, decision, refused)

  const same = project && (await findSameRequest(tx, project, body))
  if (same && (payment === undefined || decision.kind === 'granted')) {
    await assignPayments(tx, key, same)
    return { kind: 'accepted', bought: same, warnings: body.warnings }
  }
  if (decision.kind === 'asked') return ask(deps, headers, body, situation, decision)
  return grant(tx, deps, key, body, project, decision.sharesCredit)
}

/** What makes any payment pointless. Read again under the lock, because parallel requests change it. */
async function checkRequest(
  db: Deps['db'] | Tx,
  deps: Deps,
  wallet: string,
  body: ParsedBody,
): Promise<ProjectRow | undefined> {
  const project = await findProjectByName(db, body.uniqueName)
  if (project && (project.wallet !== wallet || project.status === 'deleting')) throw nameTaken()
  const isRepeated = project !== undefined && (await findSameRequest(db, project, body)) !== undefined
  if (!isRepeated) await checkWalletLimits(db, deps, wallet, project === undefined)
  return project
}

const USE_CREDITS_HINT =
  'This wallet has enough credit, which its active projects use. Send X-Use-Existing-Credits: true to share it.'
const SHARED_HINT = 'Warning: the credit is shared with the other active projects of this wallet.'

function ask(
  deps: Deps,
  headers: PaymentHeaders,
  body: ParsedBody,
  { poolMicro, otherActive, paidMicro }: Situation,
  decision: Decision,
  refused?: string,
): Outcome {
  const isAsked = decision.kind === 'asked'
  const isShort = isAsked && refused === undefined && paidMicro !== undefined
  const missingMicro = isAsked ? decision.missingMicro : 0n
  const offers = renderOffers(deps, {
    dueMicro: missingMicro,
    error: refused ?? 'Payment required',
    bodyDigest: body.bodyDigest,
    first: headers.chain,
  })
  const error = paymentRequired(deps.config, headers, {
    missingMicro,
    offers,
    poolMicro: poolMicro + (paidMicro ?? 0n),
    otherActive,
    reason: isShort ? 'amount is less than required; it was added to the credit of the wallet' : refused,
    warning: isAsked && decision.couldUseCredit ? USE_CREDITS_HINT : undefined,
  })
  return { kind: 'asked', error }
}

async function grant(
  tx: Tx,
  deps: Deps,
  key: QuoteKey,
  body: ParsedBody,
  project: ProjectRow | undefined,
  sharesCredit: boolean,
): Promise<Outcome> {
  await sql`savepoint rows`.execute(tx)
  try {
    await storeUpload(tx, deps, body.uploadDigest, body.archive)
    const bought = await writeRows(tx, deps, key.wallet, body, project)
    await assignPayments(tx, key, bought)
    await deleteQuotes(tx, key)
    await sql`release savepoint rows`.execute(tx)
    return { kind: 'accepted', bought, warnings: [...(sharesCredit ? [SHARED_HINT] : []), ...body.warnings] }
  } catch (cause) {
    // Fails as well when the connection is lost; then nothing is committed.
    await sql`rollback to savepoint rows`.execute(tx)
    return { kind: 'not written', cause }
  }
}

function rowsNotWritten(deps: Deps, cause: unknown): Error {
  // Another wallet took the name between the check and the insert.
  if (violatedKey(cause) === 'projects_unique_name') return nameTaken()
  deps.log.error({ err: cause }, 'failed to write the rows of a deployment; its payment, if any, is credited')
  const text = 'The deployment could not be recorded. What was paid for it is in the credit of the wallet.'
  return new GatewayError(500, text, { cause })
}
