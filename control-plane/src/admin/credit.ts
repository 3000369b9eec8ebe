/** `warren admin credit`: explains and checks the credit of users. */
import type { Command } from 'commander'
import { MICRO_PER_CREDIT } from '../credit/add.ts'
import { listCreditEntries } from '../credit/list-entries.ts'
import { verifyCredit } from '../credit/verify.ts'
import type { RunOnDatabase } from './run-on-database.ts'
import { getUser } from './users.ts'

const LEDGER_LIMIT = 500

export function addCreditCommands(admin: Command, runOnDatabase: RunOnDatabase): void {
  const credit = admin.command('credit').description('explain and check credit')

  credit
    .command('ledger')
    .argument('<user>', 'id or name of the user')
    .option('--sandbox <id>', 'only entries of this sandbox')
    .description(`list the last ${LEDGER_LIMIT} changes of the credit of a user, newest first`)
    .action((userRef: string, options: { sandbox?: string }) =>
      runOnDatabase(async ({ db }) => {
        const { id } = await getUser(db, userRef)
        const query = { limit: LEDGER_LIMIT, ...(options.sandbox ? { sandbox_id: options.sandbox } : {}) }
        const { entries } = await listCreditEntries(db, id, query)
        return entries.map((entry) => ({
          id: entry.id,
          at: entry.at,
          kind: entry.kind,
          credits: entry.amount_micro / MICRO_PER_CREDIT,
          balance: entry.balance_micro / MICRO_PER_CREDIT,
          reason: entry.reason,
          from: entry.usage?.from,
          to: entry.usage?.to,
        }))
      }),
    )

  credit
    .command('verify')
    .description('check that balances are the sum of the ledger, and the ledger that of usage; exits with 1 if not')
    .action(() =>
      runOnDatabase(async ({ db }) => {
        const faults = await verifyCredit(db)
        if (faults.length > 0) process.exitCode = 1
        return faults
      }),
    )
}
