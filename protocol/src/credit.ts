/** Credit of an account: the balance, and the ledger that explains it. */
import { type Static, Type } from 'typebox'
import { PageQuery } from './envelope.ts'
import { SandboxId, Timestamp } from './ids.ts'

/**
 *   grant       starting credit of a new account
 *   top_up      added by an operator
 *   adjustment  removed or corrected by an operator
 *   bandwidth   a recharge of outbound traffic
 *   usage       a sandbox during a period
 */
export const CREDIT_ENTRY_KINDS = ['grant', 'top_up', 'adjustment', 'bandwidth', 'usage'] as const
export type CreditEntryKind = (typeof CREDIT_ENTRY_KINDS)[number]

const micro = (description: string) => Type.Integer({ description: `${description} In millionths of a credit.` })

export const CreditView = Type.Object({
  balance_micro: micro('Sum of the ledger; negative when the account owes credit.'),
  pending_micro: micro('Usage since the last charge, not part of the balance yet.'),
  burn_micro_per_hour: micro('What the sandboxes of the account cost per hour as they are now.'),
  runway_seconds: Type.Optional(
    Type.Integer({ description: 'When the credit is used up at this rate. Absent when nothing is charged.' }),
  ),
  charged: Type.Boolean({ description: 'False on a plan that is never charged.' }),
  prices: Type.Object({
    vcpu_second: Type.String({ description: 'Credits per second of one vCPU of a running sandbox.' }),
    memory_gib_second: Type.String({ description: 'Credits per second of 1,024 MiB of memory, running or paused.' }),
    disk_gib_second: Type.String({ description: 'Credits per second of 1,024 MiB of disk.' }),
  }),
  as_of: Timestamp,
})
export type CreditView = Static<typeof CreditView>

export const CreditLedgerQuery = Type.Object({
  ...PageQuery.properties,
  sandbox_id: Type.Optional(Type.String({ description: 'Only entries of this sandbox.' })),
})
export type CreditLedgerQuery = Static<typeof CreditLedgerQuery>

export const CreditEntryView = Type.Object({
  id: Type.Integer(),
  at: Timestamp,
  kind: Type.Enum(CREDIT_ENTRY_KINDS),
  amount_micro: micro('Negative for charges.'),
  balance_micro: micro('Balance after this entry.'),
  reason: Type.String(),
  sandbox_id: Type.Optional(SandboxId),
  reference: Type.Optional(Type.String({ description: 'Given with a top-up, such as the number of an invoice.' })),
  usage: Type.Optional(
    Type.Object({
      status: Type.Enum(['running', 'paused', 'error']),
      from: Timestamp,
      to: Timestamp,
      seconds: Type.Number(),
      vcpu: Type.Number({ description: 'Charged vCPUs: 0 unless running, 0.25 for a quarter of one.' }),
      mem_mib: Type.Integer({ description: 'Charged memory: 0 in status error.' }),
      disk_mib: Type.Integer(),
    }),
  ),
})
export type CreditEntryView = Static<typeof CreditEntryView>
