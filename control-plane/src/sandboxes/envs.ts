/**
 * Values of environment variables. They are stored for resumes and forks, encrypted, sent only to hosts, and deleted when
 * the sandbox ends. Views contain only their names.
 */
import type { Envs } from '@warren/protocol'
import type { Db, Tx } from '../db/connect.ts'
import type { Deps } from '../deps.ts'
import { envsPlace } from '../secrets/places.ts'

export async function saveEnvs({ secrets }: Deps, tx: Tx, sandboxIds: string[], envs: Envs): Promise<void> {
  if (Object.keys(envs).length === 0) return
  const text = JSON.stringify(envs)
  await tx
    .insertInto('sandbox_envs')
    .values(sandboxIds.map((sandbox_id) => ({ sandbox_id, envs: secrets.seal(envsPlace(sandbox_id), text) })))
    .execute()
}

export async function getEnvs({ secrets }: Deps, db: Db | Tx, sandboxId: string): Promise<Envs> {
  const row = await db.selectFrom('sandbox_envs').select('envs').where('sandbox_id', '=', sandboxId).executeTakeFirst()
  return row ? JSON.parse(await secrets.open(envsPlace(sandboxId), row.envs)) : {}
}

export async function deleteEnvs(tx: Tx, sandboxId: string): Promise<void> {
  await tx.deleteFrom('sandbox_envs').where('sandbox_id', '=', sandboxId).execute()
}
