/**
 * Values of environment variables. They are stored for resumes and forks, sent only to hosts, and deleted when the
 * sandbox ends. Views contain only their names.
 */
import type { Envs } from '@warren/protocol'
import type { Db, Tx } from '../db/connect.ts'

export async function saveEnvs(tx: Tx, sandboxIds: string[], envs: Envs): Promise<void> {
  if (Object.keys(envs).length === 0) return
  const text = JSON.stringify(envs)
  await tx
    .insertInto('sandbox_envs')
    .values(sandboxIds.map((sandbox_id) => ({ sandbox_id, envs: text })))
    .execute()
}

export async function getEnvs(db: Db | Tx, sandboxId: string): Promise<Envs> {
  const row = await db.selectFrom('sandbox_envs').select('envs').where('sandbox_id', '=', sandboxId).executeTakeFirst()
  return row?.envs ?? {}
}

export async function deleteEnvs(tx: Tx, sandboxId: string): Promise<void> {
  await tx.deleteFrom('sandbox_envs').where('sandbox_id', '=', sandboxId).execute()
}
