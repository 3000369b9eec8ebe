/** What decides about a deploy request: the wallet's credit, its projects and what it was asked before. */
import type { Tx } from '../db/connect.ts'
import type { ProjectRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import type { Situation } from '../payments/decide.ts'
import type { PaymentHeaders } from '../payments/headers.ts'
import { meteredPerQuoteMicro, priceMicro } from '../payments/money.ts'
import { listQuotes, type QuoteKey } from '../payments/quotes.ts'
import { sumPartialPayments } from '../payments/record.ts'
import type { ParsedBody } from '../uploads/parse-body.ts'
import { countOtherActive } from './find.ts'
import { IS_UNFINISHED } from './statuses.ts'

export type Bought = { projectId: string; deploymentId: string }

/** Without a payment. */
export async function readSituation(
  db: Deps['db'] | Tx,
  deps: Deps,
  wallet: string,
  { useExistingCredits }: PaymentHeaders,
  { uniqueName, months }: ParsedBody,
  project: ProjectRow | undefined,
  poolMicro: bigint,
): Promise<Situation> {
  const key: QuoteKey = { wallet, uniqueName, months }
  return {
    poolMicro,
    otherActive: await countOtherActive(db, wallet, project?.id),
    isRedeploy: project !== undefined,
    months,
    useExistingCredits,
    priceMicro: priceMicro(deps.config, months),
    quotes: await listQuotes(db, key, deps.now()),
    receivedMicro: await sumPartialPayments(db, key),
    meteredMicro: meteredPerQuoteMicro(deps.config),
    paidMicro: undefined,
  }
}

/** The same body again while the first is unfinished: a client that lost the answer. */
export async function findSameRequest(
  db: Deps['db'] | Tx,
  project: ProjectRow,
  body: ParsedBody,
): Promise<Bought | undefined> {
  const row = await db
    .selectFrom('gateway.deployments')
    .select('id')
    .where('project_id', '=', project.id)
    .where('body_digest', '=', body.bodyDigest)
    .where('status', 'in', IS_UNFINISHED)
    .executeTakeFirst()
  return row && { projectId: project.id, deploymentId: row.id }
}
