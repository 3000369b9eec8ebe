/**
 * Emulation (TCG) is not a security boundary: QEMU's own documentation limits its promises to KVM. It is fine for one user on
 * their own machine. As soon as other users exist, nothing new runs on a host that emulates, unless the operator accepts it.
 *
 * Accounts of services (plan `internal`) are not tenants. Sandboxes that exist can be resumed: they have run there already.
 */
import { failure } from '@warren/kit/failure'
import { sql } from 'kysely'
import type { Tx } from '../db/connect.ts'
import { LOCAL_NAME } from '../users/service-users.ts'

const TENANTS_EXIST = sql<boolean>`exists (select from users where name <> ${LOCAL_NAME} and plan <> 'internal')`

/** A condition for `hosts`: true where something new may run. */
export const SEPARATES_TENANTS = sql<boolean>`(accel is distinct from 'tcg' or not ${TENANTS_EXIST})`

/** Throws if each active host emulates, and tenants exist. With `hostId`, only that host matters. */
export async function checkEmulation(tx: Tx, hostId?: string): Promise<void> {
  const hosts = await tx
    .selectFrom('hosts')
    .select(SEPARATES_TENANTS.as('separates'))
    .where('status', '=', 'active')
    .$if(hostId !== undefined, (query) => query.where('id', '=', hostId!))
    .execute()
  if (hosts.length > 0 && hosts.every(({ separates }) => !separates)) throw emulationRefused()
}

export const emulationRefused = () =>
  failure(
    'emulation_refused',
    'this installation has several users, and its host has no KVM: it emulates guests (TCG), which does not separate users ' +
      'from each other. The operator can use a machine with KVM, or accept the risk with WARREN_ALLOW_TCG_TENANTS=yes',
  )
