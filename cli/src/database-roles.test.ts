/** What the roles of the services can do in the embedded PostgreSQL, and who can log in as which. */
import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { after, before, describe, test } from 'node:test'
import { promisify } from 'node:util'
import { claimServiceIds } from '@warren/kit/confine/claim-ids'
import { listCode } from '@warren/kit/confine/code'
import { confine } from '@warren/kit/confine/confine'
import { type ServiceName, serviceUser } from '@warren/kit/confine/services'
import { SERVICE_ROLES, urlFor } from '@warren/kit/postgres/logins'
import type pg from 'pg'
import { type InstanceConfig, ROOT, readInstanceConfig } from './config.ts'
import { giveKeys } from './data-layout.ts'
import { type EmbeddedDatabase, startDatabase, withClient } from './database.ts'
import { migrateDatabase } from './migrate.ts'
import { findSocketFolder } from './service-env.ts'

const skip = process.getuid?.() !== 0 && 'needs root'
const signal = new AbortController().signal
const run = promisify(execFile)

describe('the roles of the embedded PostgreSQL', { skip }, () => {
  let folder: string
  let config: InstanceConfig
  let database: EmbeddedDatabase

  before(async () => {
    folder = await mkdtemp(path.join(tmpdir(), 'warren-roles-'))
    config = readInstanceConfig({ WARREN_DATA_DIR: folder })
    await giveKeys(config)
    database = await startDatabase(config, signal)
    // As an earlier version has left it: everything belongs to the superuser.
    await withClient(database.databaseUrl, async (client) => {
      await client.query('create table left_by_an_earlier_version (id bigserial primary key, at timestamptz)')
      await client.query('create function earlier() returns int language sql as $$ select 1 $$')
      await client.query(`create type mood as enum ('good')`)
    })
    // At the same time, as when both services restart together.
    const services = ['control-plane', 'gateway'] as const
    await Promise.all(services.map((service) => migrateDatabase(config, database.databaseUrl, service, signal)))
  })
  after(async () => {
    await database?.stop()
    await rm(folder, { recursive: true, force: true })
  })

  test('what an earlier version created belongs to the owner, who is no superuser', async () => {
    const { rows } = await query(`
      select c.relname as name, pg_get_userbyid(c.relowner) as owner from pg_class c
      where c.relname in ('left_by_an_earlier_version', 'left_by_an_earlier_version_id_seq', 'users', 'projects')
      union all select proname, pg_get_userbyid(proowner) from pg_proc where proname = 'earlier'
      union all select typname, pg_get_userbyid(typowner) from pg_type where typname = 'mood'`)
    assert.ok(rows.length >= 6)
    assert.deepEqual(new Set(rows.map(({ owner }) => owner)), new Set(['warren_owner']))
    const roles = await query(
      `select rolname from pg_roles where rolname ~ '^warren_' and (rolsuper or rolcreaterole or rolcreatedb)`,
    )
    assert.deepEqual(roles.rows, [])
  })

  test('a second start finds nothing to migrate', async () => {
    const startedAt = Date.now()
    const access = await migrateDatabase(config, database.databaseUrl, 'control-plane', signal)

    assert.match(access.databaseUrl, /^postgresql:\/\/warren_api:none@\/warren\?/)
    const { rows } = await query('select count(*)::int as n from kysely_migration where timestamp::timestamptz > $1', [
      new Date(startedAt),
    ])
    assert.equal(rows[0]!.n, 0)
  })

  test('a service reads and writes rows in its own schemas', async () => {
    await as('warren_api', 'select count(*) from users')
    await as('warren_api', `select graphile_worker.add_job('nothing', '{}'::json)`)
    await as('warren_api', 'select count(*) from graphile_worker._private_jobs')
    await as('warren_gateway', 'select count(*) from gateway.projects')
  })

  const FORBIDDEN = [
    'create table mine (id int)',
    'create schema mine',
    'create function mine() returns int language sql as $$ select 1 $$',
    'drop table users',
    'truncate users',
    'alter table users add column mine text',
    'alter table audit_log disable trigger all',
    'create trigger mine after insert on users for each row execute function count_new_sandboxes()',
    `update kysely_migration set name = 'x'`,
    'delete from kysely_migration',
    'create role mine superuser',
    'alter role warren_api superuser',
    'set role postgres',
    'set role warren_owner',
    'set session authorization postgres',
    'create extension dblink',
    'create database mine',
    `alter system set archive_command = 'touch /tmp/x'`,
    `copy (select 1) to program 'id'`,
    `copy users to '/tmp/x'`,
    `select pg_read_file('/etc/passwd')`,
    `select pg_ls_dir('/')`,
    `select lo_import('/etc/passwd')`,
    'select * from pg_authid',
    'select pg_reload_conf()',
    'select pg_rotate_logfile()',
    `load 'auto_explain'`,
    `create language mine handler plpgsql_call_handler`,
    'select count(*) from gateway.projects',
    `comment on schema public is 'x'`,
  ]
  for (const statement of FORBIDDEN) {
    test(`the role of the API cannot: ${statement}`, async () => {
      await assert.rejects(as('warren_api', statement), { code: /^(42501|42704|0A000|58P01)$/ })
    })
  }

  test('the role of the gateway cannot read what belongs to the API', async () => {
    for (const table of ['public.users', 'public.api_keys', 'graphile_worker._private_jobs']) {
      await assert.rejects(as('warren_gateway', `select * from ${table}`), { code: '42501' })
    }
  })

  const LOGINS: { service: ServiceName; role: string; isAllowed: boolean }[] = [
    { service: 'control-plane', role: SERVICE_ROLES['control-plane'], isAllowed: true },
    { service: 'gateway', role: SERVICE_ROLES.gateway, isAllowed: true },
    { service: 'migrations', role: 'warren_owner', isAllowed: true },
    { service: 'control-plane', role: 'postgres', isAllowed: false },
    { service: 'control-plane', role: 'warren_owner', isAllowed: false },
    { service: 'control-plane', role: SERVICE_ROLES.gateway, isAllowed: false },
    { service: 'gateway', role: 'postgres', isAllowed: false },
    { service: 'gateway', role: SERVICE_ROLES['control-plane'], isAllowed: false },
    { service: 'migrations', role: 'postgres', isAllowed: false },
  ]
  for (const { service, role, isAllowed } of LOGINS) {
    test(`${service} ${isAllowed ? 'logs' : 'cannot log'} in as ${role}`, async () => {
      const outcome = await logIn(service, urlFor(database.databaseUrl, { role }))

      assert.match(outcome, isAllowed ? new RegExp(`^${role}$`) : /Peer authentication failed/)
    })
  }

  const query = (statement: string, values: unknown[] = []) =>
    withClient(database.databaseUrl, (client) => client.query(statement, values))

  const as = (role: string, statement: string) =>
    withClient(database.databaseUrl, async (client) => {
      await client.query(`set session authorization ${role}`)
      // Back to the superuser would be allowed for this session, which began as one; a service's session does not.
      if (/^set (role|session)/.test(statement)) return checkMembership(client, role, statement)
      return client.query(statement)
    })

  async function checkMembership(client: pg.Client, role: string, statement: string) {
    const target = statement.split(' ').at(-1)
    const { rows } = await client.query('select pg_has_role($1, $2, $3) as may', [role, target, 'SET'])
    if (!rows[0].may) throw Object.assign(new Error('permission denied'), { code: '42501' })
    return client.query('select 1')
  }

  /** From a process of the service's user, in its jail. Returns the role, or the error. */
  async function logIn(service: ServiceName, url: string): Promise<string> {
    const script = `
      import { createRequire } from 'node:module'
      const pg = createRequire(${JSON.stringify(path.join(ROOT, 'cli/package.json'))})('pg')
      const client = new pg.Client({ connectionString: ${JSON.stringify(url)} })
      try {
        await client.connect()
        console.log((await client.query('select current_user as role')).rows[0].role)
        await client.end()
      } catch (error) { console.log(error.message) }`
    const user = serviceUser((await claimServiceIds(folder))!, service)
    const [command, args] = confine(
      {
        ...{ user, write: [], network: false, deathSignal: 'KILL' },
        read: [...listCode(['cli']), findSocketFolder(url)!],
      },
      process.execPath,
      ['--input-type=module', '--eval', script],
    )
    return (await run(command, args, { env: { PATH: process.env.PATH } })).stdout.trim()
  }
})
