/**
 * Requests the state of every host each second and writes it to the database. A host that no process could reach for
 * some seconds is marked dead, and nothing is placed there. Its VMs may still be running (QEMU outlives its agent), so
 * its sandboxes keep their status until it is back and reports what happened to them (sandboxes/reconcile.ts).
 * Self-signals of sandboxes arrive with the state (sandboxes/self-signals.ts).
 */
import type { HostState } from '@warren/protocol'
import { sql } from 'kysely'
import type { Db } from '../db/connect.ts'
import type { Deps } from '../deps.ts'
import type { Sweep } from '../jobs/sweep.ts'
import { applySelfSignals } from '../sandboxes/self-signals.ts'
import { HostError } from './host-error.ts'

const HEARTBEAT_MS = 1_000
export const HOST_DEAD_AFTER_S = 5
/** Catalog position of images named by operators: after the built-in ones. */
const OPERATOR_IMAGE_POSITION = 1_000

export const watchHosts: Sweep = {
  name: 'watch-hosts',
  everyMs: HEARTBEAT_MS,
  run(deps) {
    const turn = (turns.get(deps) ?? Promise.resolve()).then(() => watchAll(deps))
    turns.set(
      deps,
      turn.catch(() => {}), // Its caller reports it.
    )
    return turn
  },
}

/** One run after the other: a state that was requested earlier must not replace a newer one. */
const turns = new WeakMap<Deps, Promise<void>>()

async function watchAll(deps: Deps): Promise<void> {
  await Promise.all(hostAddresses(deps).map((address) => watchHost(deps, address)))
  const silent = await sql<{ id: string }>`update hosts set status = 'dead'
    where status <> 'dead' and seen_at < now() - make_interval(secs => ${HOST_DEAD_AFTER_S})
    returning id`.execute(deps.db)
  for (const { id } of silent.rows) deps.log.warn({ host: id }, 'host missed its heartbeats and is marked dead')
}

/** Only one machine is supported today. Hosts that enrol over the network will be read from the table. */
export const hostAddresses = (deps: Deps): string[] =>
  deps.config.hostSocket === '' ? [] : [`unix:${deps.config.hostSocket}`]

async function watchHost(deps: Deps, address: string): Promise<void> {
  try {
    const host = deps.hosts.clientAt(address)
    const state = await host.getState()
    deps.hosts.setAddress(state.id, address)
    await recordHost(deps.db, state, address)
    await applySelfSignals(deps, state, host)
  } catch (error) {
    const silent = error instanceof HostError
    deps.log[silent ? 'debug' : 'warn'](
      { err: error, address },
      silent ? 'heartbeat failed: host unreachable' : 'failed to record a heartbeat',
    )
  }
}

export async function recordHost(db: Db, state: HostState, address: string): Promise<void> {
  const ready = state.images.filter((image) => image.state === 'ready').map((image) => image.name)
  const { volume } = state
  await sql`insert into hosts (id, region, status, mem_mib, cidr, address, images, rootfses, accel, disks,
      disk_total_mib, disk_free_mib, disk_floor_mib, disk_sandboxes_mib)
    values (${state.id}, ${state.region}, 'active', ${state.mem_mib}, ${state.cidr}, ${address},
      ${JSON.stringify(state.images)}, ${ready}, ${state.accel}, ${state.disks},
      ${volume.total_mib}, ${volume.free_mib}, ${volume.floor_mib}, ${volume.sandboxes_mib})
    on conflict (id) do update set region = excluded.region, cidr = excluded.cidr, address = excluded.address,
      images = excluded.images, rootfses = excluded.rootfses, accel = excluded.accel, disks = excluded.disks,
      disk_total_mib = excluded.disk_total_mib, disk_free_mib = excluded.disk_free_mib,
      disk_floor_mib = excluded.disk_floor_mib, disk_sandboxes_mib = excluded.disk_sandboxes_mib,
      seen_at = now(),
      -- A machine that lost memory is full, not overcommitted.
      mem_mib = greatest(excluded.mem_mib, hosts.reserved_mib),
      status = case when hosts.draining or hosts.status = 'draining' then 'draining' else 'active' end`.execute(db)
  await updateImageCatalog(db)
}

/**
 * Keeps the image catalog in step with the hosts. An image that is enabled by an import (`enable_with`) is enabled
 * while some host has it. An unknown image gets a new entry after all others; when the last host has lost it, the entry
 * stays, disabled, so that a create with its name can explain what to do.
 */
async function updateImageCatalog(db: Db): Promise<void> {
  await sql`insert into rootfs (name, description, enabled, enable_with, position)
    select distinct image.name, 'Imported by the operator', true,
      'warren images import <oci-reference or tarball> --name ' || image.name, ${OPERATOR_IMAGE_POSITION}::integer
    from hosts cross join unnest(hosts.rootfses) as image (name)
    -- Images of templates belong to their owners.
    where image.name not like 'tpl:%' and not exists (select from rootfs where rootfs.name = image.name)
    on conflict do nothing`.execute(db)
  await sql`update rootfs set enabled = not enabled
    where enable_with is not null and enabled <> exists (select from hosts where rootfs.name = any (rootfses))`.execute(
    db,
  )
}
