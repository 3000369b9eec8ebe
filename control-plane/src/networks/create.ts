/** Creates a private network. The plan's caps are checked under the lock of the user's row, as for sandboxes. */
import { badField } from '@warren/kit/failure'
import { type NetworkCreateBody, type NetworkView, newId } from '@warren/protocol'
import { sql } from 'kysely'
import type { Tx } from '../db/connect.ts'
import type { Deps } from '../deps.ts'
import { checkCaps, checkCredit } from '../users/caps.ts'
import { withLockedUser } from '../users/locked.ts'
import { NETWORK_CAPS } from './caps.ts'
import { emittingNetwork } from './emit.ts'
import { viewNetwork } from './queries.ts'

/** Runs in the transaction that creates the network. */
type Commit = (tx: Tx, view: NetworkView) => Promise<void>

export async function createNetwork(
  deps: Deps,
  userId: string,
  { name }: NetworkCreateBody,
  commit?: Commit,
): Promise<NetworkView> {
  return withLockedUser(deps.db, userId, async (tx, user) => {
    await checkName(tx, userId, name)
    await checkCaps(tx, user, NETWORK_CAPS)
    checkCredit(user, 'create', 'networks')
    const network = { id: newId('network'), user_id: userId, name }
    const row = await tx
      .insertInto('networks')
      .values({ ...network, deleted_at: null })
      .returningAll()
      .returning(emittingNetwork('network.create', network).as('emitted'))
      .executeTakeFirstOrThrow()
    const view = viewNetwork(row, 0)
    await commit?.(tx, view)
    return view
  })
}

/** A duplicate is 400 here, while a duplicate sandbox name is 409. Both are part of the API's contract. */
async function checkName(tx: Tx, userId: string, name: string): Promise<void> {
  const { rows } = await sql`select from networks
    where user_id = ${userId} and name = ${name} and deleted_at is null`.execute(tx)
  if (rows.length > 0) throw badField({ name: `network name ${name} is already in use` })
}
