/**
 * Chooses the builds that start next. A host runs a number of builds that the operator sets; only that number makes a
 * build wait. The next one is of the user with the fewest builds running, and of these the oldest, so a user with many
 * builds does not delay the others.
 */
import { sql } from 'kysely'
import type { Tx } from '../../db/connect.ts'
import type { HostRow, TemplateRow } from '../../db/schema.ts'
import type { Deps } from '../../deps.ts'
import { allocateAddress } from '../../sandboxes/addresses.ts'
import { HAS_DISK_SPACE } from '../../sandboxes/disk-space.ts'
import { SEPARATES_TENANTS } from '../../sandboxes/emulation.ts'
import { lockActiveHost, reservedMib } from '../../sandboxes/reservations.ts'
import { emitTemplateEvent } from '../emit.ts'
import { moveTemplate } from '../move.ts'
import { reserveForBuild } from './reserve.ts'

/** Moves as many builds to `building` as the hosts have room for. */
export async function claimBuilds(deps: Deps): Promise<void> {
  const hosts = await deps.db
    .selectFrom('hosts')
    .select('id')
    .where('status', '=', 'active')
    .where(HAS_DISK_SPACE)
    // A build that was accepted earlier waits.
    .$if(!deps.config.allowTcgTenants, (query) => query.where(SEPARATES_TENANTS))
    .orderBy('id')
    .execute()
  for (const { id } of hosts) {
    while (await deps.db.transaction().execute((tx) => claimNext(deps, tx, id)));
  }
}

/**
 * The lock of the host lets one process at a time count and claim. A template whose row is locked is skipped: it is being
 * deleted, and waiting for it would invert the order of locks, which is template before host.
 */
async function claimNext(deps: Deps, tx: Tx, hostId: string): Promise<TemplateRow | undefined> {
  const host = await lockActiveHost(tx, hostId)
  if (!host || (await countBuilds(tx, hostId)) >= deps.config.buildsPerHost) return undefined
  const next = await findNext(tx, host)
  if (!next) return undefined
  const ip = await allocateAddress(tx, host)
  if (ip === undefined) return undefined
  const attempt = next.attempt + 1
  const row = await moveTemplate(tx, next, 'build', {
    attempt,
    attempt_started_at: deps.now(),
    host_id: hostId,
    ip,
    reserved_mib: reservedMib(host, { vcpu: deps.config.buildVcpu, mem_mib: deps.config.buildMemMib }),
  })
  if (!row) return undefined
  await reserveForBuild(tx, hostId, row.reserved_mib)
  await tx.insertInto('template_attempts').values({ template_id: row.id, attempt, host_id: hostId }).execute()
  await emitTemplateEvent(tx, 'template.build.start', row)
  return row
}

/** A deleted build counts until its VM is gone. */
async function countBuilds(tx: Tx, hostId: string): Promise<number> {
  const { n } = await tx
    .selectFrom('templates')
    .select((eb) => eb.fn.countAll<number>().as('n'))
    .where('host_id', '=', hostId)
    .where('reserved_mib', '>', 0)
    .executeTakeFirstOrThrow()
  return n
}

/** A build whose base no host has any more is started as well: the host fails it with the reason. */
async function findNext(tx: Tx, host: HostRow): Promise<Pick<TemplateRow, 'id' | 'attempt'> | undefined> {
  const { rows } = await sql<Pick<TemplateRow, 'id' | 'attempt'>>`select t.id, t.attempt from templates t
    where t.status = 'pending' and t.deleted_at is null and (t.host_id = ${host.id} or (t.host_id is null and (
      t.image = any (${host.rootfses}::text[])
      or not exists (select from hosts h where h.status = 'active' and t.image = any (h.rootfses)))))
    order by (select count(*) from templates other where other.user_id = t.user_id and other.reserved_mib > 0),
      t.created_at, t.id
    limit 1 for no key update of t skip locked`.execute(tx)
  return rows[0]
}
