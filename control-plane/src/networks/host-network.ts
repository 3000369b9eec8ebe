/**
 * The network of a sandbox as its host must enforce it: one object with rules, quota, networks and members
 * (`HostVmNetwork` in host-network.ts of the protocol), and how it reaches the host.
 *
 * The database holds the desired state. Every change raises the revision of each sandbox it affects, in the transaction
 * of the change. The operation that made the change then pushes the new object to the hosts itself, so that its response
 * means the change is in force. A host that could not be reached is caught up by a sweep (reconcile.ts): hosts report
 * which revision they have.
 *
 * A sandbox that starts or resumes gets the object with the create or resume request. A change that is committed in the
 * meantime is either seen by the check afterwards (`pushNetworkIfChanged`), or it is committed after that check, and then
 * its own operation finds the VM running and pushes. No change can fall between the two.
 */
import type { HostVmNetwork, SandboxStatus } from '@warren/protocol'
import { sql } from 'kysely'
import type { Tx } from '../db/connect.ts'
import type { SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { HostError } from '../hosts/host-error.ts'

type DesiredNetwork = HostVmNetwork & { host_id: string | null; fence: number; status: SandboxStatus }

/** Of a sandbox without a row in network_revisions. */
const FIRST_REVISION = 1

/** A single statement, so that the revision belongs to the state it is read with. */
const DESIRED = `select s.host_id, s.fence, s.status, coalesce(r.revision, ${FIRST_REVISION}) as revision, s.egress,
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

type Row = Omit<DesiredNetwork, 'bandwidth'> & HostVmNetwork['bandwidth']

/** Called in the transaction of the change. */
export async function raiseRevisions(tx: Tx, sandboxIds: readonly string[]): Promise<void> {
  if (sandboxIds.length === 0) return
  await sql`select raise_network_revisions(${[...sandboxIds]}::text[])`.execute(tx)
}

export async function getHostNetwork(deps: Deps, sandboxId: string): Promise<HostVmNetwork> {
  const { revision, egress, networks, bandwidth } = await getDesired(deps, sandboxId)
  return { revision, egress, networks, bandwidth }
}

/**
 * That of a sandbox that was just inserted and is in no network, without reading it. A change since then has a higher revision
 * and is seen by `pushNetworkIfChanged`.
 */
export const newHostNetwork = (row: SandboxRow): HostVmNetwork => ({
  revision: FIRST_REVISION,
  egress: row.egress,
  networks: [],
  bandwidth: {
    quota_bytes: row.bandwidth_quota_bytes,
    used_bytes: row.bandwidth_used_bytes,
    ingress_bytes: row.bandwidth_ingress_bytes,
  },
})

/** After a create or resume that was given `revision`, before the sandbox is reported as running. */
export async function pushNetworkIfChanged(deps: Deps, { id }: { id: string }, revision: number): Promise<void> {
  for (let applied = revision; ; ) {
    const desired = await getDesired(deps, id)
    if (desired.revision <= applied) return
    applied = await push(deps, id, desired)
  }
}

/** Called after the commit. Sandboxes that do not run get the object when they start, unreachable hosts by the sweep. */
export async function pushNetworks(deps: Deps, sandboxIds: readonly string[]): Promise<void> {
  await Promise.all(sandboxIds.map((id) => pushNetwork(deps, id)))
}

/** Called after a sandbox was added to networks: pushes to the other members. */
export async function pushPeerNetworks(deps: Deps, sandboxId: string): Promise<void> {
  const { rows } = await sql<{ id: string }>`select distinct peer.sandbox_id as id
    from network_members mine join network_members peer on peer.network_id = mine.network_id
    where mine.sandbox_id = ${sandboxId} and peer.sandbox_id <> ${sandboxId}`.execute(deps.db)
  await pushNetworks(
    deps,
    rows.map(({ id }) => id),
  )
}

async function pushNetwork(deps: Deps, sandboxId: string): Promise<void> {
  try {
    const desired = await getDesired(deps, sandboxId)
    if (!STATUSES_WITH_VM.has(desired.status)) return
    await push(deps, sandboxId, desired)
  } catch (error) {
    if (!(error instanceof HostError)) throw error
    if (CODES_WITHOUT_VM.has(error.code)) return
    deps.log.warn({ err: error, sandbox: sandboxId }, 'failed to push a network change to the host, will retry')
  }
}

const STATUSES_WITH_VM: ReadonlySet<SandboxStatus> = new Set(['creating', 'running', 'pausing', 'resuming', 'forking'])
/** The host's error codes for a sandbox that does not run there. */
const CODES_WITHOUT_VM: ReadonlySet<string> = new Set(['wrong_state', 'not_found', 'fence_lost'])

/** Returns the revision that is now in force on the host, which is higher than the pushed one if that came late. */
async function push(deps: Deps, sandboxId: string, desired: DesiredNetwork): Promise<number> {
  const { host_id, fence, revision, egress, networks, bandwidth } = desired
  const host = await deps.hosts.get(host_id)
  const applied = await host.putNetwork(sandboxId, { fence, network: { revision, egress, networks, bandwidth } })
  return applied.revision
}

async function getDesired(deps: Deps, sandboxId: string): Promise<DesiredNetwork> {
  const [row] = await deps.database.named<Row>('desired-network', DESIRED, [sandboxId])
  if (!row) throw new Error(`sandbox ${sandboxId} does not exist`)
  const { quota_bytes, used_bytes, ingress_bytes, ...rest } = row
  return { ...rest, bandwidth: { quota_bytes, used_bytes, ingress_bytes } }
}
