/**
 * What the host of a sandbox must enforce, as one object (protocol/host-network.ts), and how it gets there.
 *
 * The database says what shall be; every change raises the revision of each sandbox it touches, in the transaction of
 * the change. The verb that made the change then tells the hosts itself, so its answer means that it is in force.
 * Whoever was not reached is told by a sweep (follow.ts): hosts say which revision they have.
 *
 * A sandbox that begins to run gets the object with its create or resume. A change that is committed while that is
 * under way is seen by the look that follows it (`pushNetworkIfChanged`), or comes later than that look, and then its own
 * verb finds the VM running: there is no moment in which neither happens.
 */
import type { HostVmNetwork, SandboxStatus } from '@warren/protocol'
import { sql } from 'kysely'
import type { Tx } from '../db/connect.ts'
import type { Deps } from '../deps.ts'
import { HostError } from '../hosts/host-error.ts'

type Desired = HostVmNetwork & { host_id: string | null; fence: number; status: SandboxStatus }

/** One statement, so one moment: the revision belongs to what it comes with. */
const DESIRED = `select s.host_id, s.fence, s.status, coalesce(r.revision, 1) as revision, s.egress,
    s.bandwidth_quota_bytes as quota_bytes, s.bandwidth_used_bytes as used_bytes,
    s.bandwidth_ingress_bytes as ingress_bytes,
    coalesce((select json_agg(json_build_object('id', mine.network_id, 'name', n.name, 'members', (
        select json_agg(json_build_object('ip', host(peer.ip), 'name', peer.name) order by peer.id)
        from network_members m join sandboxes peer on peer.id = m.sandbox_id
        where m.network_id = mine.network_id and peer.ip is not null)) order by mine.network_id)
      from network_members mine join networks n on n.id = mine.network_id
      where mine.sandbox_id = s.id), '[]') as networks
  from sandboxes s left join network_revisions r on r.sandbox_id = s.id
  where s.id = $1`

type Row = Omit<Desired, 'bandwidth'> & HostVmNetwork['bandwidth']

/** In the transaction of whatever changed. */
export async function raiseRevisions(tx: Tx, sandboxIds: readonly string[]): Promise<void> {
  if (sandboxIds.length === 0) return
  await sql`select raise_network_revisions(${[...sandboxIds]}::text[])`.execute(tx)
}

export async function getHostNetwork(deps: Deps, sandboxId: string): Promise<HostVmNetwork> {
  const { revision, egress, networks, bandwidth } = await getDesired(deps, sandboxId)
  return { revision, egress, networks, bandwidth }
}

/** After a create or resume that was given `revision`, before anybody is told that it runs. */
export async function pushNetworkIfChanged(deps: Deps, { id }: { id: string }, revision: number): Promise<void> {
  for (let given = revision; ; ) {
    const desired = await getDesired(deps, id)
    if (desired.revision <= given) return
    given = await tell(deps, id, desired)
  }
}

/** After the commit. Those that do not run get it when they do; those that cannot be reached, by the sweep. */
export async function pushNetworks(deps: Deps, sandboxIds: readonly string[]): Promise<void> {
  await Promise.all(sandboxIds.map((id) => tellHost(deps, id)))
}

/** After a sandbox was made a member of networks: those that were there before it. */
export async function pushPeerNetworks(deps: Deps, sandboxId: string): Promise<void> {
  const { rows } = await sql<{ id: string }>`select distinct peer.sandbox_id as id
    from network_members mine join network_members peer on peer.network_id = mine.network_id
    where mine.sandbox_id = ${sandboxId} and peer.sandbox_id <> ${sandboxId}`.execute(deps.db)
  await pushNetworks(
    deps,
    rows.map(({ id }) => id),
  )
}

async function tellHost(deps: Deps, sandboxId: string): Promise<void> {
  try {
    const desired = await getDesired(deps, sandboxId)
    if (!MAY_RUN.has(desired.status)) return
    await tell(deps, sandboxId, desired)
  } catch (error) {
    if (!(error instanceof HostError)) throw error
    if (NOT_RUNNING.has(error.code)) return
    deps.log.warn({ err: error, sandbox: sandboxId }, 'a host was not told of a change, trying again')
  }
}

const MAY_RUN: ReadonlySet<SandboxStatus> = new Set(['creating', 'running', 'pausing', 'resuming', 'forking'])
const NOT_RUNNING: ReadonlySet<string> = new Set(['wrong_state', 'not_found', 'fence_lost'])

async function tell(deps: Deps, sandboxId: string, desired: Desired): Promise<number> {
  const { host_id, fence, revision, egress, networks, bandwidth } = desired
  const host = await deps.hosts.get(host_id)
  const applied = await host.putNetwork(sandboxId, { fence, network: { revision, egress, networks, bandwidth } })
  return applied.revision
}

async function getDesired(deps: Deps, sandboxId: string): Promise<Desired> {
  const [row] = await deps.database.named<Row>('desired-network', DESIRED, [sandboxId])
  if (!row) throw new Error(`there is no sandbox ${sandboxId}`)
  const { quota_bytes, used_bytes, ingress_bytes, ...rest } = row
  return { ...rest, bandwidth: { quota_bytes, used_bytes, ingress_bytes } }
}
