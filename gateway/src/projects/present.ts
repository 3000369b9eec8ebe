/** Finds out what a request pays: a transaction on a chain, or an authorization that is brought to one. */
import type { ProjectRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { decide } from '../payments/decide.ts'
import type { PaymentHeaders } from '../payments/headers.ts'
import { toMicro } from '../payments/money.ts'
import { readBalance } from '../payments/pool.ts'
import { refuseUsedHash } from '../payments/record.ts'
import { type VerifiedPayment, verifyPayment } from '../payments/verify.ts'
import { checkCredential, type PaymentCredential } from '../settlements/credential.ts'
import { type Settlement, settleAuthorization } from '../settlements/settle.ts'
import type { ParsedBody } from '../uploads/parse-body.ts'
import { findSameRequest, readSituation } from './situation.ts'

/** A payment that the chain confirmed, why it was refused, or nothing. */
export type Presented = { payment?: VerifiedPayment; refused?: string; settlement?: Settlement }

export async function presentHash(
  deps: Deps,
  wallet: string,
  { hash, chain, token }: PaymentHeaders,
): Promise<Presented> {
  if (hash === undefined) return {}
  await refuseUsedHash(deps.db, hash, wallet)
  return verifyPayment(deps, { hash, chain, token, wallet })
}

/** What credit covers, or what was paid before, needs no payment: then the authorization is not used. */
export async function presentCredential(
  deps: Deps,
  wallet: string,
  headers: PaymentHeaders,
  body: ParsedBody,
  project: ProjectRow | undefined,
  credential: PaymentCredential,
): Promise<Presented> {
  if (project && (await findSameRequest(deps.db, project, body))) return {}
  const poolMicro = await readBalance(deps.db, wallet)
  const situation = await readSituation(deps.db, deps, wallet, headers, body, project, poolMicro)
  if (decide(situation).kind === 'granted') return {}
  const { settler } = deps
  if (!settler) return { refused: 'this gateway takes payments by X-Payment-Tx only' }
  const checked = await checkCredential(deps, wallet, body.bodyDigest, credential)
  if ('refused' in checked) return checked
  const { transport, authorization } = credential
  const paidMicro = toMicro(authorization.value, checked.token)
  if (decide({ ...situation, paidMicro }).kind === 'asked') return { refused: 'amount is less than required' }
  const key = { wallet, uniqueName: body.uniqueName, months: body.months }
  return settleAuthorization({ ...deps, settler }, key, { ...checked, transport, authorization })
}
