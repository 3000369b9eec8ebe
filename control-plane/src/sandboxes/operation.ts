/** An operation under way, as the job that works on it names it: a sandbox and the fence it was begun with. */
import type { SandboxStatus } from '@warren/protocol'
import { Type } from 'typebox'
import type { SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'

export const Operation = Type.Object({ id: Type.String(), fence: Type.Integer() })

/** The key of its job: another operation has another job, whatever became of the one before. */
export const operationKey = (status: SandboxStatus, id: string, fence: number): string => `${status} ${id} ${fence}`

/** Undefined when it is over: somebody has ended it, or a delete has. */
export function findOperation(
  deps: Deps,
  id: string,
  status: SandboxStatus,
  fence: number,
): Promise<SandboxRow | undefined> {
  return deps.db
    .selectFrom('sandboxes')
    .selectAll()
    .where('id', '=', id)
    .where('status', '=', status)
    .where('fence', '=', fence)
    .executeTakeFirst()
}
