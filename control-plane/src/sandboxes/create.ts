/**
 * Create, in this order:
 *
 *   1. what the body asks for (parse-create.ts): every 400
 *   2. one transaction under the lock of the user's row: name, caps, credit, host and memory, address, row `creating`
 *   3. the host makes the VM and answers when the guest's agent did; it gives up after `bootLimitSeconds`
 *   4. one transaction: `running`, the billing interval, and what the caller adds (the answer for an Idempotency-Key)
 *
 * Whatever fails after 2, and a caller that hangs up, takes it all back (rollback.ts) and ends in `failed`. A process
 * that dies in between is noticed by a sweep (orphaned-creates.ts). A DELETE that comes meanwhile wins: it raises the fence, so
 * step 4 is refused and the rest is the business of the destroy.
 */
import { badField, Failure, unavailable, upstreamUnavailable } from '@warren/kit/failure'
import { type HostVmNetwork, newId, type SandboxCreateBody } from '@warren/protocol'
import type { Tx } from '../db/connect.ts'
import type { NewSandboxRow, SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { HostError, type HostErrorCode, statusReason } from '../hosts/host-error.ts'
import type { CallerUser } from '../http/caller.ts'
import { getHostNetwork, pushNetworkIfChanged, pushPeerNetworks } from '../networks/host-network.ts'
import { addToNetworks, lockNetworks } from '../networks/members.ts'
import { checkCaps, checkCredit, lockUser } from './caps.ts'
import { saveEnvs } from './envs.ts'
import { endMove, FenceLost } from './move.ts'
import { chooseName } from './names.ts'
import { rollBackOrphanedCreates } from './orphaned-creates.ts'
import { type CreateRequest, parseCreate } from './parse-create.ts'
import { CAPACITY_RETRY_S, cannotFit, type Place, placeSandbox } from './placement.ts'
import { rollBackOrRetry } from './rollback.ts'

export type CreateOptions = {
  /** Fires when nobody waits for the answer any more. */
  signal: AbortSignal
  /** Part of the transaction that makes it `running`. */
  commit?: (tx: Tx, row: SandboxRow) => Promise<void>
}

export async function createSandbox(
  deps: Deps,
  user: CallerUser,
  body: SandboxCreateBody,
  { signal, commit }: CreateOptions,
): Promise<SandboxRow> {
  const request = await parseCreate(deps, user.plan, body)
  const row = await admitWithRecovery(deps, user.id, request)
  try {
    const host = await deps.hosts.get(row.host_id)
    const network = await getHostNetwork(deps, row.id)
    const { spawn_ms } = await host.createVm(vmOf(deps, row, request, network), signal)
    signal.throwIfAborted()
    await pushNetworkIfChanged(deps, row, network.revision)
    if (request.networks.length > 0) await pushPeerNetworks(deps, row.id)
    return await finish(deps, row, spawn_ms, commit)
  } catch (error) {
    deps.log.warn({ err: error, sandbox: row.id }, 'could not create a sandbox')
    const { answer, reason } = explain(error, row, request, signal)
    await rollBackOrRetry(deps, row, 'createFailed', reason)
    throw answer
  }
}

/** What a killed process was creating holds a name and a place under the cap until a sweep sees it: not for retries. */
async function admitWithRecovery(deps: Deps, userId: string, request: CreateRequest): Promise<SandboxRow> {
  try {
    return await admit(deps, userId, request)
  } catch (error) {
    const refused = error instanceof Failure && (error.status === 409 || error.status === 429)
    if (!refused) throw error
    // Looked at again in any case: the sweep may have freed it since.
    await rollBackOrphanedCreates(deps, userId)
    return admit(deps, userId, request)
  }
}

function admit(deps: Deps, userId: string, request: CreateRequest): Promise<SandboxRow> {
  return deps.db.transaction().execute(async (tx) => {
    const user = await lockUser(tx, userId)
    const networks = await lockNetworks(tx, userId, request.networks)
    const name = await chooseName(tx, userId, request.name)
    await checkCaps(tx, userId, user.plan)
    checkCredit(user, 'create')
    if (request.region !== deps.config.region) throw unavailable(`region ${request.region} is not configured`)
    const place = await placeSandbox(tx, {
      shape: request.shape.id,
      memMib: request.shape.mem_mib,
      image: request.rootfs,
      region: request.region,
      hostId: request.hostId,
    })
    const row = newRow(deps, userId, name, request, place)
    const inserted = await tx.insertInto('sandboxes').values(row).returningAll().executeTakeFirstOrThrow()
    await saveEnvs(tx, [inserted.id], request.envs)
    await addToNetworks(tx, networks, inserted.id)
    return inserted
  })
}

const newRow = (deps: Deps, userId: string, name: string, request: CreateRequest, place: Place): NewSandboxRow => ({
  id: newId('sandbox'),
  user_id: userId,
  name,
  status: 'creating',
  owner: deps.processId,
  host_id: place.hostId,
  ip: place.ip,
  reserved_mib: request.shape.mem_mib,
  shape: request.shape.id,
  rootfs: request.rootfs,
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
  bandwidth_quota_bytes: deps.config.bandwidthQuotaBytes,
})

const vmOf = (deps: Deps, row: SandboxRow, request: CreateRequest, network: HostVmNetwork) => ({
  id: row.id,
  fence: row.fence,
  vcpu: row.vcpu,
  mem_mib: row.mem_mib,
  cpu_quota_pct: request.shape.cpu_quota_pct,
  disk_mib: row.disk_mib,
  image: row.rootfs,
  ip: row.ip!, // Given by placeSandbox.
  hostname: row.name,
  envs: request.envs,
  ssh_pubkeys: row.ssh_pubkeys,
  network,
  limit_ms: deps.config.bootLimitSeconds * 1000,
})

async function finish(
  deps: Deps,
  row: SandboxRow,
  spawnMs: number,
  commit: CreateOptions['commit'],
): Promise<SandboxRow> {
  try {
    return await deps.db.transaction().execute(async (tx) => {
      const running = await endMove(tx, row.id, 'createDone', row.fence, { set: { spawn_ms: spawnMs } })
      await commit?.(tx, running)
      return running
    })
  } catch (error) {
    if (error instanceof FenceLost) throw error
    // A connection that broke at the commit does not tell whether it happened; the row does.
    const found = await deps.db.selectFrom('sandboxes').selectAll().where('id', '=', row.id).executeTakeFirst()
    if (found?.status === 'running' && found.fence === row.fence) return found
    throw error
  }
}

const DELETED = 'the sandbox was deleted while it was being created'
const unanswered = (reason: string) => ({ answer: unavailable(reason), reason })

/** What the caller is told, and what the row says. The host's own words stay in the log. */
function explain(error: unknown, row: SandboxRow, request: CreateRequest, signal: AbortSignal) {
  if (signal.aborted) return unanswered('the caller had gone before the sandbox was ready')
  if (error instanceof FenceLost) return unanswered(DELETED)
  if (!(error instanceof HostError)) return { answer: error, reason: 'the service failed' }
  const reason = statusReason(error)
  return { answer: answerFor(error.code, reason, row, request), reason }
}

function answerFor(code: HostErrorCode, reason: string, row: SandboxRow, request: CreateRequest): Error {
  const { shape, region } = row
  if (code === 'no_capacity') return cannotFit({ shape, region, hostId: request.hostId })
  if (code === 'disk_too_small') return badField({ disk_mib: `is too small to hold ${row.rootfs}` })
  if (code === 'image_not_ready') {
    return unavailable(`rootfs ${row.rootfs} is not ready`, { retryAfterSeconds: CAPACITY_RETRY_S })
  }
  if (code === 'fence_lost') return unavailable(DELETED)
  return upstreamUnavailable(`sandbox could not be created: ${reason}`)
}
