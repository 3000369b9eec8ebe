/**
 * Applies the migrations of a service before it starts, in a separate process with a role that owns its schemas: where root
 * runs the embedded PostgreSQL, and where the operator has named such a role with WARREN_MIGRATE_DATABASE_URL. Otherwise the
 * service applies them itself.
 */
import { spawn } from 'node:child_process'
import { createHash } from 'node:crypto'
import { once } from 'node:events'
import { readdir, readFile } from 'node:fs/promises'
import path from 'node:path'
import { OWNER_ROLE, SERVICE_ROLES, urlFor } from '@warren/kit/postgres/logins'
import type pg from 'pg'
import { type InstanceConfig, ROOT } from './config.ts'
import { prepareService } from './confined-service.ts'
import { isRoot, serviceKeyFile } from './data-layout.ts'
import { withClient } from './database.ts'
import {
  type DatabaseService,
  findRecord,
  grantRows,
  prepareRoles,
  ROLES_VERSION,
  writeRecord,
} from './database-roles.ts'
import { findSocketFolder, listFiles, serviceEnv } from './service-env.ts'
import { copyToStdout, keepOutput } from './service-output.ts'

/** What the service is started with. */
export type DatabaseAccess = { databaseUrl: string; env: NodeJS.ProcessEnv }

const MIGRATED = { WARREN_MIGRATE: 'off' }
const WORKSPACES = ['kit', 'protocol', 'dockerfile']

/**
 * One after the other: the migrations of both services have one user, all of whose processes end when the next ones are
 * prepared, and change the same roles.
 */
let running: Promise<unknown> = Promise.resolve()

/** `databaseUrl` is that of the superuser, or of the operator. */
export function migrateDatabase(
  config: InstanceConfig,
  databaseUrl: string,
  service: DatabaseService,
  signal: AbortSignal,
): Promise<DatabaseAccess> {
  const done = running.then(() => migrateAlone(config, databaseUrl, service, signal))
  running = done.catch(() => {}) // The caller reports it, and the next one is not affected.
  return done
}

async function migrateAlone(
  config: InstanceConfig,
  databaseUrl: string,
  service: DatabaseService,
  signal: AbortSignal,
): Promise<DatabaseAccess> {
  signal.throwIfAborted()
  const { migrateDatabaseUrl } = config
  if (migrateDatabaseUrl !== undefined) {
    await runMigrations(config, migrateDatabaseUrl, service, signal)
    return { databaseUrl, env: MIGRATED }
  }
  if (!isRoot() || config.databaseUrl !== undefined) return { databaseUrl, env: {} }
  await withClient(databaseUrl, async (client) => {
    const wanted = await describeMigrations(service)
    if ((await findRecord(client, service)) === wanted) return
    await prepareRoles(client)
    await runMigrations(config, urlFor(databaseUrl, { role: OWNER_ROLE }), service, signal)
    await grant(client, service, wanted)
  })
  return { databaseUrl: urlFor(databaseUrl, { role: SERVICE_ROLES[service] }), env: MIGRATED }
}

/** In one transaction: a kill in between repeats all of it. */
async function grant(client: pg.Client, service: DatabaseService, record: string): Promise<void> {
  await client.query('begin')
  await grantRows(client, service)
  await writeRecord(client, service, record)
  await client.query('commit')
}

/** Changes with every migration, with those of graphile-worker, and with what is granted. */
async function describeMigrations(service: DatabaseService): Promise<string> {
  const folder = path.join(ROOT, service, 'src/db/migrations')
  const hash = createHash('sha256').update(`${ROLES_VERSION}`)
  const files = (await readdir(folder)).sort().map((name) => path.join(folder, name))
  for (const file of [...files, path.join(ROOT, 'node_modules/graphile-worker/package.json')]) {
    hash.update(path.basename(file)).update(await readFile(file))
  }
  return `migrated ${hash.digest('hex')}`
}

async function runMigrations(
  config: InstanceConfig,
  databaseUrl: string,
  service: DatabaseService,
  signal: AbortSignal,
): Promise<void> {
  const isExternal = config.databaseUrl !== undefined
  const secretsKeyFile = serviceKeyFile(config, config.secretsKeyFile)
  const env = {
    ...serviceEnv(service, { databaseUrl, isExternal }),
    WARREN_SECRETS_KEY_FILE: secretsKeyFile,
    WARREN_LOG_LEVEL: process.env.WARREN_LOG_LEVEL || 'warn',
  }
  const socketFolder = findSocketFolder(databaseUrl)
  const prepared = await prepareService(config, {
    service: 'migrations',
    program: `${service}/src/db/main.ts`,
    workspaces: [service, ...WORKSPACES],
    env,
    own: [path.join(config.dataDir, 'migrations')],
    read: socketFolder ? [socketFolder] : [],
    files: listFiles(service, env),
    filesOfServices: service === 'control-plane' && isRoot() ? [secretsKeyFile] : [],
  })
  try {
    const { command, args } = prepared
    const child = spawn(command, args, {
      stdio: ['ignore', prepared.isConfined ? 'pipe' : 'inherit', 'pipe'],
      env: prepared.env,
      detached: true,
      signal,
    })
    if (child.stdout) copyToStdout(child.stdout)
    const stderr = keepOutput(child.stderr!) // A pipe.
    const [code, name] = await once(child, 'close')
    if (code !== 0)
      throw new Error(`failed to migrate the database: ${stderr.take().trim() || (name ?? `exit status ${code}`)}`)
  } finally {
    await prepared.release()
  }
}
