/**
 * Fork, in this order:
 *
 *   1. Parse the body (parse-fork.ts). Every 400 comes from here.
 *   2. One transaction, with the user's row locked, checks that the source is paused, or running if the request has
 *      `live` (409), checks caps (429) and credit (402), reserves memory and addresses on the source's host (503), and
 *      inserts the children as `forking`, owned by this process.
 *   3. The host copies the snapshot by reference, which takes milliseconds. From then on the children are independent
 *      of the source.
 *   4. One transaction clears the owner of the children, moves those that start paused to `paused`, adds a job for each
 *      of the others, and runs the caller's `commit` (which stores the response for an Idempotency-Key).
 *   5. The response is sent.
 *   6. The job starts each child: it gets its own identity, then it is `running`. If that fails the child is `error` and
 *      can be resumed, because its copy belongs to it.
 *
 * When step 3 or 4 fails, all children are rolled back and end in `failed`. If the process dies before step 4 commits,
 * no client knows of the children, and a sweep rolls them back (orphaned-creates.ts).
 */
import { crashPoint } from '@warren/kit/crash-point'
import { Failure, unavailable, wrongState } from '@warren/kit/failure'
import { span } from '@warren/kit/span'
import { type HostVmForked, newId, type SandboxForkBody } from '@warren/protocol'
import { currentAuditId } from '../audit/context.ts'
import { newQuota } from '../bandwidth/new-quota.ts'
import type { Tx } from '../db/connect.ts'
import type { NewSandboxRow, SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { HostError } from '../hosts/host-error.ts'
import { addJob, defineJob } from '../jobs/job.ts'
import { pushPeerNetworks } from '../networks/host-network.ts'
import { addToNetworks, lockNetworks } from '../networks/members.ts'
import { checkCaps, checkCredit } from '../users/caps.ts'
import { withLockedUser } from '../users/locked.ts'
import type { PlanName } from '../users/plans.ts'
import { CAPACITY_RETRY_S, noCapacity } from './capacity.ts'
import { SANDBOX_CAPS } from './caps.ts'
import { diskFull } from './disk-space.ts'
import { checkEmulation } from './emulation.ts'
import { getEnvs, saveEnvs } from './envs.ts'
import { endMove } from './move.ts'
import { chooseName } from './names.ts'
import { findOperation, Operation, operationKey } from './operation.ts'
import { type ForkRequest, parseFork } from './parse-fork.ts'
import { placeForks } from './placement.ts'
import { commitRestore, restoreVm } from './restore-vm.ts'
import { rollBackOrRetry } from './rollback.ts'

export const startForkJob = defineJob({
  name: 'start-fork',
  payload: Operation,
  maxAttempts: 25,
  key: (operation) => operationKey('forking', operation),
  async run(deps, operation, { signal }) {
    const row = await findOperation(deps, 'forking', operation)
    if (!row) return
    await crashPoint('fork.started')
    const result = await restoreVm(deps, row, signal)
    if (result.outcome === 'restored') await crashPoint('fork.restored')
    await commitRestore(deps, row, result, { done: 'forkDone', failed: 'forkFailed' })
    await crashPoint('fork.done')
  },
})

/** Each further attempt needs a pause and a resume of the source, or the reverse, since the one before. */
const COPY_ATTEMPTS = 5

/** Runs in the transaction after which the children no longer depend on this process. */
type Commit = (tx: Tx, children: SandboxRow[]) => Promise<void>

/** Returns the children as the response shows them: `forking`. */
export async function forkSandbox(
  deps: Deps,
  source: SandboxRow,
  body: SandboxForkBody,
  commit?: Commit,
): Promise<SandboxRow[]> {
  const request = parseFork(body)
  const { children, lockedSource } = await span('reserve', () => admit(deps, source, request))
  try {
    await crashPoint('fork.admitted')
    const copied = await span('host: fork VM', () => copyFromCurrentStatus(deps, lockedSource, children, request))
    await crashPoint('fork.copied')
    await span('commit', () => commitChildren(deps, children, copied, request, commit))
  } catch (error) {
    deps.log.warn({ err: error, sandbox: source.id }, 'failed to fork sandbox')
    await Promise.all(children.map((child) => rollBackOrRetry(deps, child, 'forkAbandoned', 'the copy was not made')))
    throw error
  }
  if (request.networks.length > 0) await pushPeerNetworks(deps, children[0]!.id)
  await crashPoint('fork.begun')
  return children
}

async function admit(deps: Deps, { id: sourceId, user_id }: SandboxRow, request: ForkRequest) {
  return withLockedUser(deps.db, user_id, async (tx, user) => {
    const lockedSource = await tx
      .selectFrom('sandboxes')
      .selectAll()
      .where('id', '=', sourceId)
      .forNoKeyUpdate()
      .executeTakeFirstOrThrow()
    const networks = await lockNetworks(tx, user_id, request.networks)
    checkSource(lockedSource, request)
    await checkCaps(tx, user, SANDBOX_CAPS, request.count)
    checkCredit(user, 'fork')
    if (lockedSource.host_id === null) throw noCapacity({ shape: lockedSource.shape, region: lockedSource.region })
    if (!deps.config.allowTcgTenants) await checkEmulation(tx, lockedSource.host_id)
    const { ips, reservedMib } = await placeForks(tx, lockedSource, {
      count: request.count,
      start: !request.startPaused,
      diskOvercommit: deps.config.diskOvercommit,
    })
    const children: SandboxRow[] = []
    for (const ip of ips) {
      const row = newRow(deps, lockedSource, request, {
        ...{ name: await chooseName(tx, user_id, undefined), ip, reservedMib, plan: user.plan },
      })
      children.push(await tx.insertInto('sandboxes').values(row).returningAll().executeTakeFirstOrThrow())
    }
    const ids = children.map((child) => child.id)
    for (const id of ids) await addToNetworks(tx, networks, id)
    await saveEnvs(deps, tx, ids, request.envs ?? (await getEnvs(deps, tx, sourceId)))
    return { children, lockedSource }
  })
}

const isLive = (source: SandboxRow, request: ForkRequest): boolean => request.live && source.status === 'running'

function checkSource(source: SandboxRow, request: ForkRequest): void {
  if (source.status === 'paused' || isLive(source, request)) return
  throw wrongState(source.status, request.live ? 'paused or running' : 'paused')
}

/**
 * A child inherits what the request does not replace. Disks, network memberships, access tokens and used bandwidth are
 * never inherited.
 */
const newRow = (
  deps: Deps,
  source: SandboxRow,
  request: ForkRequest,
  { name, ip, reservedMib, plan }: { name: string; ip: string; reservedMib: number; plan: PlanName },
): NewSandboxRow => ({
  id: newId('sandbox'),
  user_id: source.user_id,
  name,
  status: 'forking',
  owner: deps.processId,
  status_audit_id: currentAuditId() ?? null,
  host_id: source.host_id,
  ip,
  reserved_mib: reservedMib,
  shape: source.shape,
  rootfs: source.rootfs,
  template_id: source.template_id,
  region: source.region,
  vcpu: source.vcpu,
  mem_mib: source.mem_mib,
  disk_mib: source.disk_mib,
  ingress_enabled: request.ingressEnabled ?? source.ingress_enabled,
  auto_pause_after_seconds: source.auto_pause_after_seconds,
  auto_resume: source.auto_resume,
  env_names: request.envs ? Object.keys(request.envs) : source.env_names,
  ssh_pubkeys: request.sshPubkeys ?? source.ssh_pubkeys,
  egress: request.egress ?? source.egress,
  bandwidth_quota_bytes: newQuota(deps, plan),
  forked_from: source.id,
})

/**
 * Between the check of the source and the copy, other requests can pause, resume or delete the source. If its new status
 * allows this fork as well, it is copied in that status; otherwise the response is the 409 for that status.
 */
async function copyFromCurrentStatus(
  deps: Deps,
  lockedSource: SandboxRow,
  children: SandboxRow[],
  request: ForkRequest,
): Promise<HostVmForked> {
  let source = lockedSource
  for (let attempt = 1; ; attempt++) {
    try {
      return await copy(deps, source, children, request)
    } catch (error) {
      if (!(error instanceof HostError)) throw error
      if (error.code === 'disk_full') throw diskFull(error)
      if (error.code === 'no_capacity') throw noCapacity({ shape: source.shape, region: source.region })
      const previous = source
      source = await deps.db.selectFrom('sandboxes').selectAll().where('id', '=', source.id).executeTakeFirstOrThrow()
      checkSource(source, request)
      // The fence rises with each move.
      if (source.fence === previous.fence || attempt === COPY_ATTEMPTS) {
        throw unavailable('fork unavailable', { cause: error, retryAfterSeconds: CAPACITY_RETRY_S })
      }
    }
  }
}

async function copy(
  deps: Deps,
  source: SandboxRow,
  children: SandboxRow[],
  request: ForkRequest,
): Promise<HostVmForked> {
  const host = await deps.hosts.get(source.host_id)
  return host.forkVm(source.id, {
    ...(isLive(source, request) ? { live: true } : source.generation === null ? {} : { generation: source.generation }),
    children: children.map(({ id, fence }) => ({ id, fence })),
  })
}

/** A child that was deleted in the meantime has another fence. Its destroy job handles it. */
async function commitChildren(
  deps: Deps,
  children: SandboxRow[],
  { generation }: HostVmForked,
  { startPaused }: ForkRequest,
  commit: Commit | undefined,
): Promise<void> {
  await deps.db.transaction().execute(async (tx) => {
    const { id, fence } = children[0]!
    const ids = children.map((child) => child.id)
    const remaining = await tx
      .updateTable('sandboxes')
      .set({ owner: null, generation })
      .where('id', 'in', ids)
      .where('status', '=', 'forking')
      .where('fence', '=', fence) // All children were inserted with the same fence.
      .returning(['id', 'fence'])
      .execute()
    if (remaining.length === 0) {
      throw new Failure('wrong_state', { message: `sandbox ${id} was deleted while it was copied` })
    }
    for (const child of remaining) {
      if (startPaused) await endMove(tx, child.id, 'forkDonePaused', child.fence)
      else await addJob(tx, startForkJob, child)
    }
    await commit?.(tx, children)
  })
}
