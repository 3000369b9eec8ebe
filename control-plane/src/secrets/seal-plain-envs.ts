/**
 * Encrypts the values of environment variables that versions before 0.3 stored in plain text.
 *
 * Rows are converted in batches, each in its own transaction. Then the table is rewritten, so that its file no longer holds
 * the old values, and last the old column is dropped. While the column exists the conversion is not complete: a start that
 * was killed anywhere in between is continued by the next one. Runs under the lock of the migration, before this process
 * serves requests.
 */
import { crashPoint } from '@warren/kit/crash-point'
import type { Database } from '../db/connect.ts'
import { envsPlace } from './places.ts'
import type { Secrets } from './secrets.ts'

const BATCH = 500

export async function sealPlainEnvs({ pool }: Pick<Database, 'pool'>, secrets: Secrets): Promise<void> {
  const { rowCount } = await pool.query(`select from information_schema.columns
    where table_schema = current_schema() and table_name = 'sandbox_envs' and column_name = 'plain_envs'`)
  if (rowCount === 0) return
  while ((await sealBatch(pool, secrets)) > 0) await crashPoint('secrets.batch')
  await pool.query('vacuum full sandbox_envs')
  await crashPoint('secrets.rewritten')
  await pool.query(`alter table sandbox_envs drop column plain_envs, alter column envs set not null`)
}

async function sealBatch(pool: Database['pool'], secrets: Secrets): Promise<number> {
  const { rows } = await pool.query<{ sandbox_id: string; plain_envs: object }>(
    'select sandbox_id, plain_envs from sandbox_envs where envs is null limit $1',
    [BATCH],
  )
  const sealed = rows.map((row) => secrets.seal(envsPlace(row.sandbox_id), JSON.stringify(row.plain_envs)))
  await pool.query(
    `update sandbox_envs e set envs = s.envs, plain_envs = null
      from unnest($1::text[], $2::text[]) s (sandbox_id, envs)
      where e.sandbox_id = s.sandbox_id and e.envs is null`,
    [rows.map((row) => row.sandbox_id), sealed],
  )
  return rows.length
}
