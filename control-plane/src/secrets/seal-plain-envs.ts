/**
 * Encrypts the values of environment variables that versions before 0.3 stored in plain text.
 *
 * Rows are converted in batches, each in its own transaction. Then, in one more, the old column is dropped and the table is
 * rewritten, so that its file no longer holds the old values. While the column exists the conversion is not complete: a
 * start that was killed anywhere in between is continued by the next one. Runs under the lock of the migration, before this
 * process serves requests.
 *
 * The role of the control plane may not own the table. The last step is therefore a function of its owner, who prepares it
 * with the migrations.
 */
import { crashPoint } from '@warren/kit/crash-point'
import type { Database } from '../db/connect.ts'
import { envsPlace } from './places.ts'
import type { Secrets } from './secrets.ts'

const BATCH = 500

export async function sealPlainEnvs({ pool }: Pick<Database, 'pool'>, secrets: Secrets): Promise<void> {
  if (!(await hasPlainEnvs(pool))) return
  while ((await sealBatch(pool, secrets)) > 0) await crashPoint('secrets.batch')
  await crashPoint('secrets.sealed')
  await pool.query('select drop_plain_envs()')
}

/** To be called by the role that owns the tables. `set not null` fails while there is a row that is not encrypted. */
export async function prepareDropOfPlainEnvs({ pool }: Pick<Database, 'pool'>): Promise<void> {
  if (!(await hasPlainEnvs(pool))) {
    await pool.query('drop function if exists drop_plain_envs')
    return
  }
  await pool.query(`
    create or replace function drop_plain_envs() returns void
      language plpgsql security definer set search_path = public, pg_temp as $$
    begin
      alter table sandbox_envs drop column plain_envs, alter column envs set not null;
      cluster sandbox_envs using sandbox_envs_pkey;
      alter table sandbox_envs set without cluster;
    end $$`)
}

/** In the catalogue of PostgreSQL: the standard one shows a role only what it may use. */
async function hasPlainEnvs(pool: Database['pool']): Promise<boolean> {
  const { rowCount } = await pool.query(`select from pg_attribute
    where attrelid = to_regclass('sandbox_envs') and attname = 'plain_envs' and not attisdropped`)
  return rowCount === 1
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
