/**
 * The roles of the embedded PostgreSQL, when root starts it. `warren_owner` owns the schemas and applies migrations. The
 * services have roles that read and write rows in their own schemas: no other statement, and no other schema. The
 * superuser is used by root alone: for what is in this file, and for `warren admin`.
 *
 * What an earlier version has created belongs to the superuser. It is given to the owner once.
 */
import { OWNER_ROLE, SERVICE_ROLES } from '@warren/kit/postgres/logins'
import type pg from 'pg'

export type DatabaseService = keyof typeof SERVICE_ROLES

/** The first one holds the table of applied migrations, and the record of what was granted. */
const SCHEMAS: Record<DatabaseService, readonly [string, ...string[]]> = {
  'control-plane': ['public', 'graphile_worker'],
  gateway: ['gateway'],
}

/** A change of this file needs another number. */
export const ROLES_VERSION = 1

/** Creates the roles, and gives the owner everything that is not part of PostgreSQL itself. Repeatable. */
export async function prepareRoles(client: pg.Client): Promise<void> {
  for (const role of [OWNER_ROLE, ...Object.values(SERVICE_ROLES)]) {
    const { rowCount } = await client.query('select from pg_roles where rolname = $1', [role])
    if (rowCount === 0) await client.query(`create role ${role} login`)
    await client.query(`alter role ${role} nosuperuser nocreatedb nocreaterole noreplication nobypassrls`)
  }
  // graphile-worker protects its tables with policies that only their owner passes.
  await client.query(`alter role ${SERVICE_ROLES['control-plane']} bypassrls`)
  await client.query(`alter database warren owner to ${OWNER_ROLE}`)
  await client.query('revoke all on database warren, postgres, template1 from public')
  await client.query(`grant connect on database warren to ${Object.values(SERVICE_ROLES).join()}`)
  // Tables first: their sequences follow them.
  for (const list of [FOREIGN_SCHEMAS, FOREIGN_TABLES, FOREIGN_SEQUENCES, FOREIGN_ROUTINES, FOREIGN_TYPES]) {
    const { rows } = await client.query<{ object: string }>(list, [OWNER_ROLE])
    for (const { object } of rows) await client.query(`alter ${object} owner to ${OWNER_ROLE}`)
  }
}

/** Lets the role of a service read and write rows. To be called when its schemas have been migrated. */
export async function grantRows(client: pg.Client, service: DatabaseService): Promise<void> {
  const role = SERVICE_ROLES[service]
  const schemas = SCHEMAS[service].join()
  await client.query(`revoke all on schema ${schemas} from public`)
  await client.query(`grant usage on schema ${schemas} to ${role}`)
  await client.query(`grant select, insert, update, delete on all tables in schema ${schemas} to ${role}`)
  await client.query(`grant usage, select, update on all sequences in schema ${schemas} to ${role}`)
  await client.query(`grant execute on all routines in schema ${schemas} to ${role}`)
  for (const schema of SCHEMAS[service]) {
    const tables = await listMigrationTables(client, schema)
    for (const table of tables) await client.query(`revoke insert, update, delete on ${table} from ${role}`)
  }
}

/** What was migrated and granted last, or undefined if the schema does not exist. */
export async function findRecord(client: pg.Client, service: DatabaseService): Promise<string | undefined> {
  const { rows } = await client.query<{ record: string | null }>(
    "select obj_description(oid, 'pg_namespace') as record from pg_namespace where nspname = $1",
    [SCHEMAS[service][0]],
  )
  return rows[0]?.record ?? undefined
}

export async function writeRecord(client: pg.Client, service: DatabaseService, record: string): Promise<void> {
  await client.query(`comment on schema ${SCHEMAS[service][0]} is ${client.escapeLiteral(record)}`)
}

/** A service that could change them would make the next start believe that it has nothing to migrate. */
async function listMigrationTables(client: pg.Client, schema: string): Promise<string[]> {
  const { rows } = await client.query<{ name: string }>(
    `select format('%I.%I', schemaname, tablename) as name from pg_tables
     where schemaname = $1 and tablename in ('kysely_migration', 'kysely_migration_lock', 'migrations')`,
    [schema],
  )
  return rows.map(({ name }) => name)
}

const OURS = `n.nspname !~ '^pg_' and n.nspname <> 'information_schema'`
const NOT_OF_EXTENSIONS = (catalog: string, object: string) =>
  `not exists (select from pg_depend d where d.classid = '${catalog}'::regclass and d.objid = ${object}.oid and d.deptype = 'e')`

const FOREIGN_SCHEMAS = `
  select format('schema %I', n.nspname) as object from pg_namespace n
  where ${OURS} and n.nspname <> 'public' and pg_get_userbyid(n.nspowner) <> $1`

const relations = (kinds: string) => `
  select format('table %I.%I', n.nspname, c.relname) as object from pg_class c join pg_namespace n on n.oid = c.relnamespace
  where ${OURS} and c.relkind in (${kinds}) and pg_get_userbyid(c.relowner) <> $1 and ${NOT_OF_EXTENSIONS('pg_class', 'c')}`

const FOREIGN_TABLES = relations(`'r', 'p', 'v', 'm', 'f'`)
const FOREIGN_SEQUENCES = relations(`'S'`)

const FOREIGN_ROUTINES = `
  select 'routine ' || p.oid::regprocedure as object from pg_proc p join pg_namespace n on n.oid = p.pronamespace
  where ${OURS} and pg_get_userbyid(p.proowner) <> $1 and ${NOT_OF_EXTENSIONS('pg_proc', 'p')}`

/** Types of tables and arrays belong to what they are made of. */
const FOREIGN_TYPES = `
  select format('type %I.%I', n.nspname, t.typname) as object
  from pg_type t join pg_namespace n on n.oid = t.typnamespace left join pg_class c on c.oid = t.typrelid
  where ${OURS} and (t.typtype in ('e', 'd', 'r') or c.relkind = 'c')
    and pg_get_userbyid(t.typowner) <> $1 and ${NOT_OF_EXTENSIONS('pg_type', 't')}`
