/**
 * The environments of the services: what each of them needs, and no secrets of others. Settings that name files name
 * them by absolute paths, because a service in a jail has another working directory.
 */
import { existsSync, realpathSync } from 'node:fs'
import { homedir } from 'node:os'
import path from 'node:path'

type NodeService = 'control-plane' | 'gateway' | 'development-chain'

const COMMON =
  /^(PATH|HOME|TZ|LANG|LANGUAGE|LC_\w+|OTEL_\w+|SSL_CERT_(FILE|DIR)|WARREN_(LOG_\w+|CRASH_POINTS|TEST_\w+))$/
/** Those that Node reads. Others, such as NODE_AUTH_TOKEN, are secrets of other programs. */
const NODE =
  /^NODE_(OPTIONS|EXTRA_CA_CERTS|USE_SYSTEM_CA|USE_ENV_PROXY|TLS_REJECT_UNAUTHORIZED|ICU_DATA|NO_WARNINGS|COMPILE_CACHE|DEBUG|ENV|V8_COVERAGE)$/
const PROXIES = /^(no|https?|all)_proxy$/i
/** Of `pg`, for the database of DATABASE_URL. */
const DATABASE = /^PG\w+$/

/** Settings of databases are for these. */
const HAS_DATABASE: Record<NodeService, boolean> = { 'control-plane': true, gateway: true, 'development-chain': false }

const NEEDED: Record<NodeService, (name: string) => boolean> = {
  'control-plane': (name) => /^WARREN_/.test(name) && !/^WARREN_(GATEWAY_|API_KEY$|MIGRATE)/.test(name),
  gateway: (name) => /^WARREN_GATEWAY_/.test(name) && !/^WARREN_GATEWAY_(WALLET_KEY|URL|DEV_\w+)$/.test(name),
  'development-chain': () => false,
}

/** Settings that name a file which the service reads. */
const FILES: Record<NodeService, readonly string[]> = {
  'control-plane': ['WARREN_INGRESS_CERT', 'WARREN_INGRESS_KEY'],
  gateway: [
    ...['WARREN_GATEWAY_APPS_CERT', 'WARREN_GATEWAY_APPS_KEY', 'WARREN_GATEWAY_SETTLER_KEY_FILE'],
    'WARREN_GATEWAY_KEY_FILE',
  ],
  'development-chain': [],
}
const COMMON_FILES = ['NODE_EXTRA_CA_CERTS', 'SSL_CERT_FILE']
const DATABASE_FILES = ['PGSSLCERT', 'PGSSLKEY', 'PGSSLROOTCERT', 'PGPASSFILE']
const URL_FILES = ['sslcert', 'sslkey', 'sslrootcert']

/** `databaseUrl` is empty for a service without a database. `isExternal`: the operator runs the database. */
export type ServiceDatabase = { databaseUrl: string; isExternal: boolean }

export function serviceEnv(
  service: NodeService,
  { databaseUrl, isExternal }: ServiceDatabase,
  env = process.env,
): NodeJS.ProcessEnv {
  const isNeeded = (name: string) =>
    COMMON.test(name) ||
    NODE.test(name) ||
    PROXIES.test(name) ||
    (isExternal && DATABASE.test(name)) ||
    NEEDED[service](name)
  const needed = Object.fromEntries(Object.entries(env).filter(([name]) => isNeeded(name)))
  for (const name of fileSettings(service)) if (needed[name]) needed[name] = path.resolve(needed[name])
  // `pg` looks for it in the home directory, which a service in a jail does not see.
  const passwords = path.join(homedir(), '.pgpass')
  if (isExternal && !needed.PGPASSFILE && existsSync(passwords)) needed.PGPASSFILE = passwords
  return databaseUrl === ''
    ? needed
    : { ...needed, DATABASE_URL: isExternal ? withAbsoluteFiles(databaseUrl) : databaseUrl }
}

/** The files that an environment names. */
export function listFiles(service: NodeService, env: NodeJS.ProcessEnv): string[] {
  const url = HAS_DATABASE[service] ? parseUrl(env.DATABASE_URL) : undefined
  const named = [
    ...fileSettings(service).map((name) => env[name]),
    ...URL_FILES.map((name) => url?.searchParams.get(name)),
  ]
  return named.filter((file) => file !== undefined && file !== null && file !== '' && path.isAbsolute(file)) as string[]
}

/** The folder of the database's socket, if it is reached by one. */
export function findSocketFolder(databaseUrl: string): string | undefined {
  const url = parseUrl(databaseUrl)
  const host = url?.searchParams.get('host') || (url && decodeURIComponent(url.hostname)) || ''
  return host.startsWith('/') ? path.resolve(host) : undefined
}

/** Folders with more than sockets of a database, which a service would see as a whole, or which its jail has itself. */
const SHARED_FOLDERS = ['/', '/dev', '/dev/shm', '/etc', '/home', '/root', '/run', '/tmp', '/usr', '/var', '/var/tmp']

/** Throws if a service in a jail cannot be given the socket of a database. */
export function checkSocketFolder(databaseUrl: string, setting: string): void {
  const folder = findSocketFolder(databaseUrl)
  if (folder === undefined || !existsSync(folder) || !SHARED_FOLDERS.includes(realpathSync(folder))) return
  throw new Error(
    `${setting} names a socket in ${folder}, which other programs use as well, so the jails of services do not show it; ` +
      'set unix_socket_directories of that PostgreSQL to a folder for its sockets alone, such as /run/postgresql, ' +
      'or connect to 127.0.0.1',
  )
}

const fileSettings = (service: NodeService): string[] => [
  ...FILES[service],
  ...COMMON_FILES,
  ...(HAS_DATABASE[service] ? DATABASE_FILES : []),
]

function withAbsoluteFiles(databaseUrl: string): string {
  const url = parseUrl(databaseUrl)
  const relative = URL_FILES.filter((name) => {
    const file = url?.searchParams.get(name)
    return file && !path.isAbsolute(file)
  })
  if (url === undefined || relative.length === 0) return databaseUrl
  for (const name of relative) url.searchParams.set(name, path.resolve(url.searchParams.get(name)!)) // Found above.
  return url.href
}

/** Undefined for what only `pg` can read; it is passed on as it is. */
function parseUrl(text: string | undefined): URL | undefined {
  try {
    // URLs without a host, as for sockets, have a user: `postgresql://postgres:none@/warren?host=…`.
    return text ? new URL(text.replace(/^(\w+:\/\/[^/?]*@)(?=[/?])/, '$1localhost')) : undefined
  } catch {
    return undefined
  }
}
