/**
 * Create, in this order:
 *
 *   1. Parse the body (parse-create.ts). Every 400 comes from here.
 *   2. One transaction, with the user's row locked, checks name, caps and credit, reserves memory and an address on a
 *      host, and inserts the row as `creating`.
 *   3. The host creates the VM and answers once the guest agent does, or fails after `bootLimitSeconds`.
 *   4. One transaction moves the row to `running`, opens the billing interval, and runs the caller's `commit` (which
 *      stores the response for an Idempotency-Key).
 *
 * When step 3 or 4 fails, or the caller disconnects, everything is rolled back and the row ends in `failed`
 * (rollback.ts). If the process dies, a sweep does the same (orphaned-creates.ts). A concurrent DELETE wins: it raises
 * the fence, so step 4 cannot commit, and the destroy job removes the VM.
 */
import { badField, Failure, unavailable, upstreamUnavailable } from '@warren/kit/failure'
import { span } from '@warren/kit/span'
import {
  type HostVmCreated,
  type HostVmMounts,
  type HostVmNetwork,
  newId,
  type SandboxCreateBody,
} from '@warren/protocol'
import { sql } from 'kysely'
import { currentAuditId } from '../audit/context.ts'
import { newQuota } from '../bandwidth/new-quota.ts'
import type { Tx } from '../db/connect.ts'
import type { NewSandboxRow, SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { addAttachments, lockDisks } from '../disks/attach-new.ts'
import { findHostMounts } from '../disks/host-mounts.ts'
import { HostError, type HostErrorCode, statusReason } from '../hosts/host-error.ts'
import type { CallerUser } from '../http/caller.ts'
import { getHostNetwork, newHostNetwork, pushNetworkIfChanged, pushPeerNetworks } from '../networks/host-network.ts'
import { addToNetworks, lockNetworks } from '../networks/members.ts'
import { checkCaps, checkCredit, type LockedUser } from '../users/caps.ts'
import { withLockedUser } from '../users/locked.ts'
import { CAPACITY_RETRY_S, noCapacity } from './capacity.ts'
import { SANDBOX_CAPS } from './caps.ts'
import { diskFull } from './disk-space.ts'
import { saveEnvs } from './envs.ts'
import { endMove, FenceLost } from './move.ts'
import { chooseName } from './names.ts'
import { rollBackOrphanedCreates } from './orphaned-creates.ts'
import { type CreateRequest, parseCreate, unknownRootfs } from './parse-create.ts'
import { type Placement, placeSandbox } from './placement.ts'
import { rollBackOrRetry } from './rollback.ts'
import type { CreatedSandbox } from './view.ts'

export type CreateOptions = {
  /** Aborts when the caller has disconnected. */
  signal: AbortSignal
  /** Runs in the transaction that moves the row to `running`. */
  commit?: (tx: Tx, row: CreatedSandbox) => Promise<void>
}

export async function createSandbox(
  deps: Deps,
  user: CallerUser,
  body: SandboxCreateBody,
  { signal, commit }: CreateOptions,
): Promise<CreatedSandbox> {
  const request = await parseCreate(deps, user, body)
  const row = await span('reserve', () => admitWithOrphanCleanup(deps, user.id, request))
  try {
    const host = await deps.hosts.get(row.host_id)
    const network = request.networks.length > 0 ? await getHostNetwork(deps, row.id) : newHostNetwork(row)
    const mounts = request.disks.length > 0 ? await findHostMounts(deps, row.id) : undefined
    const created = await span('host: create VM', () =>
      host.createVm(createVmBody(deps, row, request, network, mounts), signal),
    )
    signal.throwIfAborted()
    await pushNetworkIfChanged(deps, row, network.revision)
    if (request.networks.length > 0) await pushPeerNetworks(deps, row.id)
    return await span('commit', () => finish(deps, row, created, commit))
  } catch (error) {
    deps.log.warn({ err: error, sandbox: row.id }, 'failed to create sandbox')
    const { response, reason } = explain(error, row, request, signal)
    await rollBackOrRetry(deps, row, 'createFailed', reason)
    throw response
  }
}

/**
 * A create whose process was killed holds its name and counts towards the cap until the sweep rolls it back. The client
 * probably retries that very create, so before it is rejected the user's orphans are rolled back.
 */
async function admitWithOrphanCleanup(deps: Deps, userId: string, request: CreateRequest): Promise<SandboxRow> {
  try {
    return await admit(deps, userId, request)
  } catch (error) {
    const rejected = error instanceof Failure && (error.status === 409 || error.status === 429)
    if (!rejected) throw error
    await rollBackOrphanedCreates(deps, userId)
    // Even if no orphan was found: the sweep may have rolled one back since.
    return admit(deps, userId, request)
  }
}

function admit(deps: Deps, userId: string, request: CreateRequest): Promise<SandboxRow> {
  return withLockedUser(deps.db, userId, async (tx, user) => {
    await lockTemplate(tx, request)
    const networks = await lockNetworks(tx, userId, request.networks)
    const disks = await lockDisks(tx, userId, request.disks)
    const name = await chooseName(tx, userId, request.name)
    await checkCaps(tx, user, SANDBOX_CAPS)
    checkCredit(user, 'create')
    if (request.region !== deps.config.region) throw unavailable(`region ${request.region} is not configured`)
    const placement = await placeSandbox(tx, {
      shape: request.shape,
      diskMib: request.diskMib,
      diskOvercommit: deps.config.diskOvercommit,
      image: request.source.image,
      imageHostId: request.source.template?.hostId,
      region: request.region,
      hostId: request.hostId,
      allowTcgTenants: deps.config.allowTcgTenants,
      needsDisks: disks.length > 0,
    })
    const row = newRow(deps, user, name, request, placement)
    const inserted = await tx.insertInto('sandboxes').values(row).returningAll().executeTakeFirstOrThrow()
    await saveEnvs(deps, tx, [inserted.id], request.envs)
    await addToNetworks(tx, networks, inserted.id)
    await addAttachments(tx, inserted.id, disks)
    return inserted
  })
}

/**
 * A delete of the template waits for this transaction, and its image stays for as long as the sandbox is `creating`
 * (templates/builds/clean-up.ts).
 */
async function lockTemplate(tx: Tx, { rootfs, source }: CreateRequest): Promise<void> {
  if (!source.template) return
  const { rows } = await sql`select from templates where id = ${source.template.id} and deleted_at is null
    for share`.execute(tx)
  if (rows.length === 0) throw unknownRootfs(rootfs)
}

const newRow = (
  deps: Deps,
  user: LockedUser,
  name: string,
  request: CreateRequest,
  placement: Placement,
): NewSandboxRow => ({
  id: newId('sandbox'),
  user_id: user.id,
  name,
  status: 'creating',
  owner: deps.processId,
  status_audit_id: currentAuditId() ?? null,
  host_id: placement.hostId,
  ip: placement.ip,
  reserved_mib: placement.reservedMib,
  shape: request.shape.id,
  rootfs: request.rootfs,
  template_id: request.source.template?.id ?? null,
  region: request.region,
  vcpu: request.shape.vcpu,
  mem_mib: request.shape.mem_mib,
  disk_mib: request.diskMib,
  ingress_enabled: request.ingressEnabled,
  auto_pause_after_seconds: request.autoPauseAfterSeconds,
  auto_resume: request.autoResume,
  env_names: Object.keys(request.envs),
  ssh_pubkeys: request.sshPubkeys,
  egress: request.egress,
  bandwidth_quota_bytes: newQuota(deps, user.plan),
})

const createVmBody = (
  deps: Deps,
  row: SandboxRow,
  request: CreateRequest,
  network: HostVmNetwork,
  mounts: HostVmMounts | undefined,
) => ({
  id: row.id,
  fence: row.fence,
  vcpu: row.vcpu,
  mem_mib: row.mem_mib,
  cpu_quota_pct: request.shape.cpu_quota_pct,
  disk_mib: row.disk_mib,
  image: request.source.image,
  ip: row.ip!, // Assigned by placeSandbox.
  hostname: row.name,
  envs: request.envs,
  ssh_pubkeys: row.ssh_pubkeys,
  network,
  ...(mounts ? { mounts } : {}),
  limit_ms: deps.config.bootLimitSeconds * 1000,
})

async function finish(
  deps: Deps,
  row: SandboxRow,
  { spawn_ms, how: spawn_kind }: HostVmCreated,
  commit: CreateOptions['commit'],
): Promise<CreatedSandbox> {
  try {
    return await deps.db.transaction().execute(async (tx) => {
      const moved = await endMove(tx, row.id, 'createDone', row.fence, { set: { spawn_ms } })
      const running = { ...moved, spawn_kind }
      await commit?.(tx, running)
      return running
    })
  } catch (error) {
    if (error instanceof FenceLost) throw error
    // A connection lost during the commit leaves open whether it took effect. The row tells.
    const found = await deps.db.selectFrom('sandboxes').selectAll().where('id', '=', row.id).executeTakeFirst()
    if (found?.status === 'running' && found.fence === row.fence) return { ...found, spawn_kind }
    throw error
  }
}

const DELETED = 'the sandbox was deleted while it was being created'
const withReason = (reason: string) => ({ response: unavailable(reason), reason })

/** The response to the caller and the reason on the row. The host's own message is only logged. */
function explain(error: unknown, row: SandboxRow, request: CreateRequest, signal: AbortSignal) {
  if (signal.aborted) return withReason('the caller disconnected before the sandbox was ready')
  if (error instanceof FenceLost) return withReason(DELETED)
  if (!(error instanceof HostError)) return { response: error, reason: 'the service failed' }
  const reason = statusReason(error)
  return { response: responseFor(error.code, reason, row, request), reason }
}

function responseFor(code: HostErrorCode, reason: string, row: SandboxRow, request: CreateRequest): Error {
  const { shape, region } = row
  if (code === 'no_capacity') return noCapacity({ shape, region, hostId: request.hostId })
  if (code === 'disk_full') return diskFull()
  if (code === 'disk_too_small') return badField({ disk_mib: `is too small to hold ${row.rootfs}` })
  if (code === 'image_not_ready') {
    return unavailable(`rootfs ${row.rootfs} is not ready`, { retryAfterSeconds: CAPACITY_RETRY_S })
  }
  if (code === 'fence_lost') return unavailable(DELETED)
  return upstreamUnavailable(`sandbox could not be created: ${reason}`)
}
