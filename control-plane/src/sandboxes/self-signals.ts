/**
 * Applies self-signals: a program in a sandbox may ask to pause or delete that sandbox. The host lists the signal with
 * the VM until the VM is paused or deleted.
 *
 * Each signal is applied once. When a host's state contains signals, their rows are read and the host is asked again.
 * A signal that it still lists is newer than the rows, and is applied only if the fence has not changed since; a sandbox
 * that was paused and resumed in between has another fence and its signal is gone. A failed pause leaves the signal
 * with the VM, and it is applied again after RETRY_AFTER_S.
 */
import { Failure } from '@warren/kit/failure'
import { type HostState, type HostVmSignal, sanitizeSelfReason } from '@warren/protocol'
import { sql } from 'kysely'
import type { SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import type { HostClient } from '../hosts/client.ts'
import { destroySandbox } from './destroy.ts'
import { beginPause } from './pause.ts'

const RETRY_AFTER_S = 30

type SeenRow = Pick<SandboxRow, 'id' | 'fence' | 'status'>

export async function applySelfSignals(
  deps: Deps,
  state: HostState,
  host: Pick<HostClient, 'getState'>,
): Promise<void> {
  const ids = state.vms.flatMap((vm) => (vm.signal ? [vm.id] : []))
  if (ids.length === 0) return
  const rows = await deps.db
    .selectFrom('sandboxes')
    .select(['id', 'fence', 'status'])
    .where('id', 'in', ids)
    .where('host_id', '=', state.id)
    .where('status', 'in', ['running', 'pausing'])
    .execute()
  if (rows.length === 0) return
  const { vms } = await host.getState()
  for (const row of rows) await applySignal(deps, row, vms.find((vm) => vm.id === row.id)?.signal)
}

async function applySignal(deps: Deps, row: SeenRow, signal: HostVmSignal | undefined): Promise<void> {
  if (!signal) return
  // The host has sanitized the text already, but it comes from the guest and is not trusted.
  const reason = sanitizeSelfReason(signal.reason)
  if (signal.action === 'delete') {
    await destroySandbox(deps, row.id, { actor: 'sandbox', reason: reason ?? 'deleted from inside the sandbox' })
  } else if (row.status === 'running') await pauseBySignal(deps, row, reason ?? 'paused from inside the sandbox')
}

async function pauseBySignal(deps: Deps, row: SeenRow, reason: string): Promise<void> {
  try {
    await deps.db.transaction().execute(async (tx) => {
      const { rows } = await sql`select from sandboxes where id = ${row.id} and fence = ${row.fence}
        and not (status_actor = 'sandbox' and status_since > now() - make_interval(secs => ${RETRY_AFTER_S}))
        for no key update`.execute(tx)
      if (rows.length > 0) await beginPause(tx, row.id, 'sandbox', reason)
    })
  } catch (error) {
    if (!(error instanceof Failure)) throw error // 409: another operation has begun first.
  }
}
