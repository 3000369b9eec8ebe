import { notFound } from '@warren/kit/failure'
import type { Command } from 'commander'
import type { Db } from '../db/connect.ts'
import type { UserRow } from '../db/schema.ts'
import { createUser } from '../users/create.ts'
import { addCredit, MICRO_PER_CREDIT } from '../users/credit.ts'
import { createApiKey } from '../users/keys.ts'
import type { PlanName } from '../users/plans.ts'
import { type Admin, parseCredits, planOption } from './options.ts'

export function addUserCommands(program: Command, admin: Admin): void {
  const user = program.command('user').description('users')

  user
    .command('create')
    .argument('<name>')
    .addOption(planOption('free'))
    .option('--operator', 'may list hosts and do what operators do')
    .description('make a user and a first key, which is shown once')
    .action((name: string, options: { plan: PlanName; operator?: boolean }) =>
      admin.run(async ({ db }) => {
        const row = await createUser(db, { name, plan: options.plan, operator: options.operator ?? false })
        const { key } = await createApiKey(db, row.id, 'first')
        return { ...viewUser(row), api_key: key }
      }),
    )

  user
    .command('list')
    .description('all users')
    .action(() =>
      admin.run(async ({ db }) =>
        (await db.selectFrom('users').selectAll().orderBy('created_at').execute()).map(viewUser),
      ),
    )

  user
    .command('set-plan')
    .argument('<user>', 'id or name')
    .addArgument(program.createArgument('<plan>').choices(planOption('free').argChoices ?? []))
    .description('change the plan; holds from the next request on')
    .action((who: string, plan: PlanName) =>
      admin.run(async ({ db }) => {
        const { id } = await getUser(db, who)
        return viewUser(
          await db.updateTable('users').set({ plan }).where('id', '=', id).returningAll().executeTakeFirstOrThrow(),
        )
      }),
    )

  user
    .command('add-credit')
    .argument('<user>', 'id or name')
    .argument('<credits>', 'how many; negative takes away', parseCredits)
    .option('--reason <text>', 'kept with the entry', 'added by an operator')
    .description('add credit')
    .action((who: string, credits: number, options: { reason: string }) =>
      admin.run(async ({ db }) => {
        const { id } = await getUser(db, who)
        return viewUser(await db.transaction().execute((tx) => addCredit(tx, id, credits, options.reason)))
      }),
    )
}

export async function getUser(db: Db, who: string): Promise<UserRow> {
  const row = await db
    .selectFrom('users')
    .selectAll()
    .where((eb) => eb.or([eb('id', '=', who), eb('name', '=', who)]))
    .executeTakeFirst()
  if (!row) throw notFound(`user ${who}`)
  return row
}

const viewUser = (row: UserRow) => ({
  id: row.id,
  name: row.name,
  plan: row.plan,
  operator: row.operator,
  credits: row.credit_micro / MICRO_PER_CREDIT,
  created_at: row.created_at,
})
