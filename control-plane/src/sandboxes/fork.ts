/**
 * Fork, in this order:
 *
 *   1. what the body asks for (parse-fork.ts): every 400
 *   2. one transaction under the lock of the user's row: the source is paused (409), caps (429), credit (402), memory
 *      and addresses on the host of the source (503), rows `forking` that this process owns
 *   3. the host copies by reference: milliseconds, and from then on nothing that happens to the source matters
 *   4. one transaction: nobody owns the children any more; `paused` for those that shall be, a job for the others, and
 *      what the caller adds (the answer for an Idempotency-Key)
 *   5. the answer
 *   6. the job brings each child up: its own identity, then `running`. If that fails it is `error` and can be resumed:
 *      its copy is its own
 *
 * Whatever fails in 3 and 4 takes all children back and ends them in `failed`. A process that dies before 4 has told
 * nobody of them: a sweep ends them like a create (orphaned-creates.ts).
 */
import { crashPoint } from '@warren/kit/crash-point'
import { Failure, unavailable, wrongState } from '@warren/kit/failure'
import { type HostVmForked, newId, type SandboxForkBody } from '@warren/protocol'
import type { Tx } from '../db/connect.ts'
import type { NewSandboxRow, SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { HostError } from '../hosts/host-error.ts'
import { addJob, defineJob } from '../jobs/job.ts'
import { pushPeerNetworks } from '../networks/host-network.ts'
import { addToNetworks, lockNetworks } from '../networks/members.ts'
import { checkCaps, checkCredit, lockUser } from './caps.ts'
import { getEnvs, saveEnvs } from './envs.ts'
import { endMove } from './move.ts'
import { chooseName } from './names.ts'
import { findOperation, Operation, operationKey } from './operation.ts'
import { type ForkRequest, parseFork } from './parse-fork.ts'
import { CAPACITY_RETRY_S, cannotFit, placeForks } from './placement.ts'
import { restoreVm } from './restore-vm.ts'
import { rollBackOrRetry } from './rollback.ts'

export const startForkJob = defineJob({
  name: 'start-fork',
  payload: Operation,
  maxAttempts: 25,
  async run(deps, { id, fence }, { signal }) {
    const row = await findOperation(deps, id, 'forking', fence)
    if (!row) return
    await crashPoint('fork.started')
    await restoreVm(deps, row, { done: 'forkDone', failed: 'forkFailed', crash: 'fork.restored' }, signal)
    await crashPoint('fork.done')
  },
})

export const addStartForkJob = (tx: Tx, { id, fence }: Pick<SandboxRow, 'id' | 'fence'>): Promise<void> =>
  addJob(tx, startForkJob, { id, fence }, { key: operationKey('forking', id, fence) })

/** Part of the transaction after which the children live on their own. */
type Commit = (tx: Tx, children: SandboxRow[]) => Promise<void>

/** The children as they are when the answer leaves: `forking`. */
export async function forkSandbox(
  deps: Deps,
  source: SandboxRow,
  body: SandboxForkBody,
  commit?: Commit,
): Promise<SandboxRow[]> {
  const request = parseFork(body)
  const { children, seen } = await admit(deps, source, request)
  try {
    await crashPoint('fork.admitted')
    const copied = await copy(deps, seen, children, request)
    await crashPoint('fork.copied')
    await letGo(deps, children, copied, request, commit)
  } catch (error) {
    deps.log.warn({ err: error, sandbox: source.id }, 'could not fork a sandbox')
    await Promise.all(children.map((child) => rollBackOrRetry(deps, child, 'forkAbandoned', 'the copy was not made')))
    throw error instanceof HostError ? await explain(deps, seen, request, error) : error
  }
  if (request.networks.length > 0) await pushPeerNetworks(deps, children[0]!.id)
  await crashPoint('fork.begun')
  return children
}

async function admit(deps: Deps, { id: sourceId, user_id }: SandboxRow, request: ForkRequest) {
  return deps.db.transaction().execute(async (tx) => {
    const user = await lockUser(tx, user_id)
    const seen = await tx
      .selectFrom('sandboxes')
      .selectAll()
      .where('id', '=', sourceId)
      .forNoKeyUpdate()
      .executeTakeFirstOrThrow()
    const networks = await lockNetworks(tx, user_id, request.networks)
    checkSource(seen, request)
    await checkCaps(tx, user_id, user.plan, request.count)
    checkCredit(user, 'fork')
    if (seen.host_id === null) throw cannotFit({ ...seen, hostId: undefined })
    const ips = await placeForks(tx, seen, request.count, !request.startPaused)
    const children: SandboxRow[] = []
    for (const ip of ips) {
      const row = newRow(deps, seen, request, await chooseName(tx, user_id, undefined), ip)
      children.push(await tx.insertInto('sandboxes').values(row).returningAll().executeTakeFirstOrThrow())
    }
    const ids = children.map((child) => child.id)
    for (const id of ids) await addToNetworks(tx, networks, id)
    await saveEnvs(tx, ids, request.envs ?? (await getEnvs(tx, sourceId)))
    return { children, seen }
  })
}

const isLive = (source: SandboxRow, request: ForkRequest): boolean => request.live && source.status === 'running'

function checkSource(source: SandboxRow, request: ForkRequest): void {
  if (source.status === 'paused' || isLive(source, request)) return
  throw wrongState(source.status, request.live ? 'paused or running' : 'paused')
}

/** Inherited is what makes it the same machine; disks, networks, tokens and the bandwidth ledger are not (wire 3). */
const newRow = (deps: Deps, source: SandboxRow, request: ForkRequest, name: string, ip: string): NewSandboxRow => ({
  id: newId('sandbox'),
  user_id: source.user_id,
  name,
  status: 'forking',
  owner: deps.processId,
  host_id: source.host_id,
  ip,
  reserved_mib: request.startPaused ? 0 : source.mem_mib,
  shape: source.shape,
  rootfs: source.rootfs,
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
  bandwidth_quota_bytes: deps.config.bandwidthQuotaBytes,
  forked_from: source.id,
})

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

/** A child that was deleted meanwhile has another fence, and is left to its destroy. */
async function letGo(
  deps: Deps,
  children: SandboxRow[],
  { generation }: HostVmForked,
  { startPaused }: ForkRequest,
  commit: Commit | undefined,
): Promise<void> {
  await deps.db.transaction().execute(async (tx) => {
    const { id, fence } = children[0]!
    const ids = children.map((child) => child.id)
    const free = await tx
      .updateTable('sandboxes')
      .set({ owner: null, generation })
      .where('id', 'in', ids)
      .where('status', '=', 'forking')
      .where('fence', '=', fence) // Born together: all have the same.
      .returning(['id', 'fence'])
      .execute()
    if (free.length === 0)
      throw new Failure('wrong_state', { message: `sandbox ${id} was deleted while it was copied` })
    for (const child of free) {
      if (startPaused) await endMove(tx, child.id, 'forkDonePaused', child.fence)
      else await addStartForkJob(tx, child)
    }
    await commit?.(tx, children)
  })
}

/** What the host says about the source may only mean that it has moved on since. */
async function explain(deps: Deps, seen: SandboxRow, request: ForkRequest, error: HostError): Promise<Error> {
  if (error.code === 'no_capacity') return cannotFit({ ...seen, hostId: undefined })
  const now = await deps.db.selectFrom('sandboxes').selectAll().where('id', '=', seen.id).executeTakeFirstOrThrow()
  try {
    checkSource(now, request)
  } catch (changed) {
    return changed as Failure
  }
  return unavailable('fork unavailable', { cause: error, retryAfterSeconds: CAPACITY_RETRY_S })
}
