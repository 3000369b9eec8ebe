/**
 * Adds SSH public keys to a sandbox. The database row is authoritative: every resume writes its keys into the guest. A
 * running guest gets new keys immediately. A guest that is starting may already have received the old keys, so a job
 * writes them once it runs.
 */
import { badField, wrongState } from '@warren/kit/failure'
import {
  checkSshPublicKeys,
  GuestIdentityResponse,
  isTerminal,
  mergeSshPublicKeys,
  type SshPubkeysView,
  TRANSITIONAL_STATUSES,
} from '@warren/protocol'
import { Type } from 'typebox'
import type { SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { addJob, defineJob } from '../jobs/job.ts'
import { emitting } from '../webhooks/emit.ts'
import { requestGuest } from './request-guest.ts'
import { withGuest } from './with-guest.ts'

const PUSH_TIMEOUT_MS = 10_000
/** The delay between attempts grows; a state change of a sandbox takes seconds. */
const ATTEMPTS = 12

export const pushSshKeysJob = defineJob({
  name: 'push-ssh-keys',
  payload: Type.Object({ id: Type.String() }),
  maxAttempts: ATTEMPTS,
  key: ({ id }) => `ssh keys ${id}`,
  async run(deps, { id }, { signal }) {
    const row = await getRow(deps, id)
    if (isChangingState(row)) throw new Error(`${id} is ${row.status}; retrying when it runs`)
    if (row.status === 'running') await pushKeys(deps, row, signal)
  },
})

export async function addSshKeys(deps: Deps, sandboxId: string, keys: string[]): Promise<SshPubkeysView> {
  const fault = checkSshPublicKeys(keys)
  if (fault) throw badField({ keys: fault })
  const row = await mergeKeys(deps, sandboxId, keys)
  if (row.status === 'running') {
    await withGuest(deps, row, () => pushKeys(deps, row, AbortSignal.timeout(PUSH_TIMEOUT_MS)))
  }
  return { count: row.ssh_pubkeys.length }
}

function mergeKeys(deps: Deps, sandboxId: string, keys: string[]): Promise<SandboxRow> {
  return deps.db.transaction().execute(async (tx) => {
    const known = await tx
      .selectFrom('sandboxes')
      .selectAll()
      .where('id', '=', sandboxId)
      .forNoKeyUpdate()
      .executeTakeFirstOrThrow()
    if (isTerminal(known.status)) throw wrongState(known.status, 'a living sandbox')
    const ssh_pubkeys = mergeSshPublicKeys(known.ssh_pubkeys, keys)
    const fault = checkSshPublicKeys(ssh_pubkeys)
    if (fault) throw badField({ keys: fault })
    if (isChangingState(known)) await addJob(tx, pushSshKeysJob, { id: sandboxId })
    const event = emitting({
      userId: known.user_id,
      action: 'sandbox.ssh_pubkey.update',
      subject: sandboxId,
      data: { id: sandboxId, name: known.name, count: ssh_pubkeys.length },
    })
    return tx
      .updateTable('sandboxes')
      .set({ ssh_pubkeys })
      .where('id', '=', sandboxId)
      .returningAll()
      .returning(event.as('emitted'))
      .executeTakeFirstOrThrow()
  })
}

/**
 * Repeats until the guest has the keys of the row: of two concurrent updates, the one with fewer keys may arrive last.
 */
async function pushKeys(deps: Deps, row: SandboxRow, signal: AbortSignal): Promise<void> {
  for (let current = row; ; ) {
    const { ssh_pubkeys } = current
    await requestGuest(
      deps,
      current,
      { method: 'POST', route: 'identity', body: { ssh_pubkeys } },
      GuestIdentityResponse,
      signal,
    )
    current = await getRow(deps, row.id)
    if (current.status !== 'running' || current.ssh_pubkeys.join('\n') === ssh_pubkeys.join('\n')) return
  }
}

const getRow = (deps: Deps, id: string): Promise<SandboxRow> =>
  deps.db.selectFrom('sandboxes').selectAll().where('id', '=', id).executeTakeFirstOrThrow()

const isChangingState = (row: SandboxRow): boolean =>
  row.status !== 'destroying' && (TRANSITIONAL_STATUSES as readonly string[]).includes(row.status)
