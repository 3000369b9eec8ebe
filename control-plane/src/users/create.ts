/**
 * Creates users: by the admin tool, at the first start, or when a user of an external identity service sends the first
 * request.
 */
import { failure } from '@warren/kit/failure'
import { newId } from '@warren/protocol'
import { addCredit } from '../credit/add.ts'
import type { Db, Tx } from '../db/connect.ts'
import type { UserRow } from '../db/schema.ts'
import type { PlanName } from './plans.ts'

const STARTING_CREDITS = 500

export type NewUser = { name: string; plan: PlanName; operator?: boolean; externalId?: string }

export async function createUser(db: Db, user: NewUser): Promise<UserRow> {
  const row = await db.transaction().execute((tx) => insertUser(tx, user))
  if (!row) throw failure('name_in_use', `user name ${user.name} is already in use`)
  return row
}

/** Finds the user with this id in an external service, or creates it. Concurrent first requests create it once. */
export async function findOrCreateExternalUser(db: Db, externalId: string): Promise<UserRow> {
  const find = () => db.selectFrom('users').selectAll().where('external_id', '=', externalId).executeTakeFirst()
  const found = await find()
  if (found) return found
  await db.transaction().execute((tx) => insertUser(tx, { name: externalId, externalId, plan: 'free' }))
  const created = await find()
  if (!created) throw new Error(`failed to create user ${externalId}: the name belongs to a local user`)
  return created
}

async function insertUser(tx: Tx, user: NewUser): Promise<UserRow | undefined> {
  const row = await tx
    .insertInto('users')
    .values({
      id: newId('user'),
      name: user.name,
      external_id: user.externalId ?? null,
      plan: user.plan,
      operator: user.operator ?? false,
    })
    .onConflict((conflict) => conflict.doNothing())
    .returningAll()
    .executeTakeFirst()
  if (!row) return undefined
  return addCredit(tx, row.id, STARTING_CREDITS, { kind: 'grant', reason: 'new account' })
}
