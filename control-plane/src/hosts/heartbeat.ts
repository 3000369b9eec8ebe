/**
 * Asks every host for its state each second and writes what it says. A host that no process could reach for some
 * seconds is dead: nothing is placed there. Its VMs may well run on (QEMU outlives its agent), so its sandboxes keep
 * their status until it is back and says what became of them (sandboxes/reconcile.ts). What sandboxes ask for
 * themselves comes along with the state (sandboxes/self-signals.ts).
 */
import type { HostState } from '@warren/protocol'
import { sql } from 'kysely'
import type { Db } from '../db/connect.ts'
import type { Deps } from '../deps.ts'
import type { Sweep } from '../jobs/sweep.ts'
import { applySelfSignals } from '../sandboxes/self-signals.ts'
import { HostError } from './failure.ts'

const BEAT_MS = 1_000
export const HOST_DEAD_AFTER_S = 5
/** Of the images that operators name, in the order of the catalog. */
const AFTER_OURS = 1_000

export const watchHosts: Sweep = {
  name: 'watch-hosts',
  everyMs: BEAT_MS,
  async run(deps) {
    await Promise.all(hostAddresses(deps).map((address) => watchHost(deps, address)))
    const silent = await sql<{ id: string }>`update hosts set status = 'dead'
      where status <> 'dead' and seen_at < now() - make_interval(secs => ${HOST_DEAD_AFTER_S})
      returning id`.execute(deps.db)
    for (const { id } of silent.rows) deps.log.warn({ host: id }, 'a host fell silent')
  },
}

/** One machine today. Hosts that enrol by themselves will be rows of the table. */
export const hostAddresses = (deps: Deps): string[] =>
  deps.config.hostSocket === '' ? [] : [`unix:${deps.config.hostSocket}`]

async function watchHost(deps: Deps, address: string): Promise<void> {
  try {
    const host = deps.hosts.at(address)
    const state = await host.getState()
    deps.hosts.learn(state.id, address)
    await recordHost(deps.db, state, address)
    await applySelfSignals(deps, state, host)
  } catch (error) {
    const silent = error instanceof HostError
    deps.log[silent ? 'debug' : 'warn'](
      { err: error, address },
      silent ? 'a host does not answer' : 'could not watch a host',
    )
  }
}

export async function recordHost(db: Db, state: HostState, address: string): Promise<void> {
  const ready = state.images.filter((image) => image.state === 'ready').map((image) => image.name)
  await sql`insert into hosts (id, region, status, mem_mib, cidr, address, images, rootfses)
    values (${state.id}, ${state.region}, 'active', ${state.mem_mib}, ${state.cidr}, ${address},
      ${JSON.stringify(state.images)}, ${ready})
    on conflict (id) do update set region = excluded.region, cidr = excluded.cidr, address = excluded.address,
      images = excluded.images, rootfses = excluded.rootfses, seen_at = now(),
      -- A machine that shrank is full, not oversold.
      mem_mib = greatest(excluded.mem_mib, hosts.reserved_mib),
      status = case when hosts.draining or hosts.status = 'draining' then 'draining' else 'active' end`.execute(db)
  await followImages(db)
}

/**
 * What an operator enables by an import (`enable_with`) is in the catalog while some host has it. A name that nobody
 * foresaw gets an entry of its own, after all others; it stays, disabled, when the last host has lost it, so that a
 * create which names it is told what to do.
 */
async function followImages(db: Db): Promise<void> {
  await sql`insert into rootfs (name, description, enabled, enable_with, position)
    select distinct image.name, 'Imported by the operator', true,
      'warren images import <oci-reference or tarball> --name ' || image.name, ${AFTER_OURS}::integer
    from hosts cross join unnest(hosts.rootfses) as image (name)
    where not exists (select from rootfs where rootfs.name = image.name)
    on conflict do nothing`.execute(db)
  await sql`update rootfs set enabled = not enabled
    where enable_with is not null and enabled <> exists (select from hosts where rootfs.name = any (rootfses))`.execute(
    db,
  )
}
