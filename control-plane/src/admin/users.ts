/** `warren admin user`: creates and lists users, and changes their plan, limits and credit. */
import { notFound } from '@warren/kit/failure'
import { type Command, InvalidArgumentError, Option } from 'commander'
import { addCredit, MICRO_PER_CREDIT } from '../credit/add.ts'
import type { Db } from '../db/connect.ts'
import type { UserRow } from '../db/schema.ts'
import { createUser } from '../users/create.ts'
import { createApiKey } from '../users/keys.ts'
import { LIMIT_NAMES, type LimitName, limitsOf, PLAN_NAMES, type PlanName } from '../users/plans.ts'
import { setLimit } from '../users/set-limit.ts'
import { viewLimits } from './plans.ts'
import type { RunOnDatabase } from './run-on-database.ts'

export function addUserCommands(admin: Command, runOnDatabase: RunOnDatabase): void {
  const user = admin.command('user').description('manage users')

  user
    .command('create')
    .argument('<name>', 'name of the new user')
    .addOption(new Option('--plan <plan>', 'plan of the user').choices(PLAN_NAMES).default('free'))
    .option('--operator', 'give the user the rights of an operator')
    .description('create a user and a first API key; the key is shown only once')
    .action((name: string, options: { plan: PlanName; operator?: boolean }) =>
      runOnDatabase(async ({ db }) => {
        const row = await createUser(db, { name, plan: options.plan, operator: options.operator ?? false })
        const { key } = await createApiKey(db, row.id, 'first')
        return { ...viewUser(row), api_key: key }
      }),
    )

  user
    .command('list')
    .description('list all users')
    .action(() =>
      runOnDatabase(async ({ db }) =>
        (await db.selectFrom('users').selectAll().orderBy('created_at').execute()).map(viewUser),
      ),
    )

  user
    .command('set-plan')
    .argument('<user>', 'id or name of the user')
    .addArgument(admin.createArgument('<plan>', 'new plan').choices(PLAN_NAMES))
    .description('change the plan of a user, from the next request on')
    .action((userRef: string, plan: PlanName) =>
      runOnDatabase(async ({ db }) => {
        const { id } = await getUser(db, userRef)
        return viewUser(
          await db.updateTable('users').set({ plan }).where('id', '=', id).returningAll().executeTakeFirstOrThrow(),
        )
      }),
    )

  user
    .command('set-limit')
    .argument('<user>', 'id or name of the user')
    .addArgument(admin.createArgument('<limit>', 'limit, as printed by `user limits`').choices(LIMIT_NAMES))
    .argument('<value>', 'a number, `unlimited`, or `plan` for the limit of the plan', parseLimit)
    .description('set a limit of one user, from the next request on')
    .action((userRef: string, limit: LimitName, value: number | 'plan') =>
      runOnDatabase(async ({ db }) => {
        const { id } = await getUser(db, userRef)
        return listLimits(await setLimit(db, id, limit, value))
      }),
    )

  user
    .command('limits')
    .argument('<user>', 'id or name of the user')
    .description('list the limits of a user, and where each comes from')
    .action((userRef: string) => runOnDatabase(async ({ db }) => listLimits(await getUser(db, userRef))))

  user
    .command('add-credit')
    .argument('<user>', 'id or name of the user')
    .argument('<credits>', 'number of credits; a negative number removes credit', parseCredits)
    .option('--reason <text>', 'reason, stored with the entry', 'added by an operator')
    .option('--reference <text>', 'such as the number of an invoice; a repeated reference changes nothing')
    .description('add credit to a user')
    .action((userRef: string, credits: number, options: { reason: string; reference?: string }) =>
      runOnDatabase(async ({ db }) => {
        const { id } = await getUser(db, userRef)
        const entry = { kind: credits < 0 ? 'adjustment' : 'top_up', ...options } as const
        return viewUser(await db.transaction().execute((tx) => addCredit(tx, id, credits, entry)))
      }),
    )
}

export async function getUser(db: Db, userRef: string): Promise<UserRow> {
  const row = await db
    .selectFrom('users')
    .selectAll()
    .where((eb) => eb.or([eb('id', '=', userRef), eb('name', '=', userRef)]))
    .executeTakeFirst()
  if (!row) throw notFound(`user ${userRef}`)
  return row
}

function parseLimit(text: string): number | 'plan' {
  if (text === 'plan') return 'plan'
  if (text === 'unlimited') return Number.POSITIVE_INFINITY
  if (!/^\d{1,9}$/.test(text)) throw new InvalidArgumentError('a whole number, `unlimited` or `plan`.')
  return Number(text)
}

function listLimits(user: UserRow) {
  const limits = viewLimits(limitsOf(user))
  return LIMIT_NAMES.map((limit) => ({
    limit,
    value: limits[limit],
    from: limit in user.limit_overrides ? 'set for this user' : `plan ${user.plan}`,
  }))
}

function parseCredits(text: string): number {
  const credits = Number(text)
  if (!/^-?\d+(\.\d{1,6})?$/.test(text) || Math.abs(credits) > 1e9) {
    throw new InvalidArgumentError('a number of credits, with at most 6 decimals.')
  }
  return credits
}

const viewUser = (row: UserRow) => ({
  id: row.id,
  name: row.name,
  plan: row.plan,
  operator: row.operator,
  credits: row.credit_micro / MICRO_PER_CREDIT,
  created_at: row.created_at,
})
