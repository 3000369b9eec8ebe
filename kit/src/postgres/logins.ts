/**
 * Who may connect to an embedded PostgreSQL in a jail, as which role: by the user id of the client's process, which the
 * kernel tells the server. The server finds its name in the jail's own /etc/passwd.
 */
import { accountName, type ServiceName } from '../confine/services.ts'

/** Runs everything that needs a superuser: the server itself, and root of the machine. */
const SUPERUSER = 'postgres'

/** Owns the schemas and applies migrations. */
export const OWNER_ROLE = 'warren_owner'

/** The role of each service. They can read and write rows, and change nothing else. */
export const SERVICE_ROLES = {
  'control-plane': 'warren_api',
  gateway: 'warren_gateway',
} as const satisfies Partial<Record<ServiceName, string>>

const LOGINS: readonly (readonly [account: string, role: string])[] = [
  ['root', SUPERUSER],
  [accountName('postgres'), SUPERUSER],
  [accountName('migrations'), OWNER_ROLE],
  [accountName('control-plane'), SERVICE_ROLES['control-plane']],
  [accountName('gateway'), SERVICE_ROLES.gateway],
]

const FOLDER = '/etc/postgresql'

/** Files in the jail, by path, and the settings that name them. */
export const LOGIN_FILES: Readonly<Record<string, string>> = {
  [`${FOLDER}/pg_hba.conf`]: 'local all all peer map=services\n',
  [`${FOLDER}/pg_ident.conf`]: LOGINS.map(([account, role]) => `services ${account} ${role}\n`).join(''),
}
export const LOGIN_SETTINGS = { hba_file: `${FOLDER}/pg_hba.conf`, ident_file: `${FOLDER}/pg_ident.conf` }

/** The URL of a server for another role or database. */
export const urlFor = (url: string, { role, database }: { role?: string; database?: string }): string =>
  url.replace(/^(postgresql:\/\/)(\w+)(:\w+)@\/(\w+)\?/, (_, start, oldRole, password, oldDatabase) => {
    return `${start}${role ?? oldRole}${password}@/${database ?? oldDatabase}?`
  })
