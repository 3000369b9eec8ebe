/**
 * What sandboxes ask for themselves (spec 4.15): a host lists it with the VM until it is paused or deleted.
 *
 * Acted on once. When a state has signals, their rows are read and the host is asked again: what it still lists then is
 * newer than the rows, and is obeyed only if nothing has begun since. One that was paused and resumed in between has
 * another fence, and its signal is gone. A pause that failed leaves the signal with the VM; it is tried again after a
 * while, not each second.
 */
import { Failure } from '@warren/kit/failure'
import { type HostState, type HostVmSignal, sanitizeSelfReason } from '@warren/protocol'
import { sql } from 'kysely'
import type { SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import type { HostClient } from '../hosts/client.ts'
import { destroySandbox } from './destroy.ts'
import { beginPause } from './pause.ts'

const AGAIN_AFTER_S = 30

type Seen = Pick<SandboxRow, 'id' | 'fence' | 'status'>

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
  for (const row of rows) await obey(deps, row, vms.find((vm) => vm.id === row.id)?.signal)
}

async function obey(deps: Deps, row: Seen, signal: HostVmSignal | undefined): Promise<void> {
  if (!signal) return
  // The host has cleaned it; of what a guest wrote nothing is taken on trust.
  const reason = sanitizeSelfReason(signal.reason)
  if (signal.action === 'delete') {
    await destroySandbox(deps, row.id, { actor: 'sandbox', reason: reason ?? 'deleted from inside' })
  } else if (row.status === 'running') await pauseItself(deps, row, reason ?? 'paused from inside')
}

async function pauseItself(deps: Deps, row: Seen, reason: string): Promise<void> {
  try {
    await deps.db.transaction().execute(async (tx) => {
      const { rows } = await sql`select from sandboxes where id = ${row.id} and fence = ${row.fence}
        and not (status_actor = 'sandbox' and status_since > now() - make_interval(secs => ${AGAIN_AFTER_S}))
        for no key update`.execute(tx)
      if (rows.length > 0) await beginPause(tx, row.id, 'sandbox', reason)
    })
  } catch (error) {
    if (!(error instanceof Failure)) throw error // 409: somebody was faster.
  }
}
