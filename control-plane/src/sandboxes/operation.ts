/** An operation in progress, as its job identifies it: the sandbox and the fence that the operation began with. */
import type { SandboxStatus } from '@warren/protocol'
import { type Static, Type } from 'typebox'
import type { SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'

export const Operation = Type.Object({ id: Type.String(), fence: Type.Integer() })
export type Operation = Static<typeof Operation>

/** The key of the operation's job. It contains the fence, so the next operation on the sandbox gets another job. */
export const operationKey = (status: SandboxStatus, { id, fence }: Operation): string => `${status} ${id} ${fence}`

/** The row, or undefined when the operation is over: it was completed, or a delete replaced it. */
export function findOperation(
  deps: Deps,
  status: SandboxStatus,
  { id, fence }: Operation,
): Promise<SandboxRow | undefined> {
  return deps.db
    .selectFrom('sandboxes')
    .selectAll()
    .where('id', '=', id)
    .where('status', '=', status)
    .where('fence', '=', fence)
    .executeTakeFirst()
}
