/** The settings that the `warren` command itself reads; all others pass through to the services it starts. */
import { homedir } from 'node:os'
import path from 'node:path'
import { flag, readConfig, text } from '@warren/kit/config'
import {
  DATA_DIR,
  DATABASE_DIR,
  DATABASE_URL,
  INGRESS_CA_DIR,
  LISTENERS,
  SERVICE_UID,
} from '@warren/kit/shared-settings'

export const ROOT = path.resolve(import.meta.dirname, '../..')

/** Relative paths are relative to where the user typed the command, which npm passes in INIT_CWD. */
export const resolvePath = (file: string, env = process.env): string =>
  path.resolve(env.INIT_CWD ?? process.cwd(), file.replace(/^~(?=\/|$)/, homedir()))

export const readCacheDir = (env = process.env): string =>
  env.WARREN_CACHE_DIR
    ? resolvePath(env.WARREN_CACHE_DIR, env)
    : path.join(env.XDG_CACHE_HOME || path.join(homedir(), '.cache'), 'warren')

/** Images and other files that can be built again. All clones of this repository that a user has share them. */
export const CACHE_DIR = readCacheDir()

export const SETTINGS = {
  dataDir: DATA_DIR,
  databaseDir: DATABASE_DIR,
  databaseUrl: DATABASE_URL,
  migrateDatabaseUrl: text('WARREN_MIGRATE_DATABASE_URL', {
    default: '',
    defaultText: 'DATABASE_URL',
    description:
      'URL of the same database with a role that owns its schemas. If it is set, migrations are applied with it, and the role ' +
      'of DATABASE_URL needs to read and write rows only.',
  }),
  serviceUid: SERVICE_UID,
  caDir: INGRESS_CA_DIR,
  // tools/setup.sh reads it too: with `off` it installs nothing for virtual machines.
  vms: flag('WARREN_VMS', {
    default: true,
    description: 'Run virtual machines. They need root and x86-64; without them Warren serves the rest of the API.',
  }),
  gateway: flag('WARREN_GATEWAY', {
    default: true,
    description:
      'Run the deployment gateway. Without `WARREN_GATEWAY_PAY_TO`, `WARREN_GATEWAY_RPC_ARBITRUM` and ' +
      '`WARREN_GATEWAY_RPC_BASE` it has a development chain, if it can be reached from this machine only.',
  }),
  ...LISTENERS,
}

/** Read by the commands that use the API: ssh, tunnel and webhooks listen. WARREN_BASE_URL is a setting of the control plane as well. */
export const CLIENT_SETTINGS = {
  apiKey: text('WARREN_API_KEY', {
    default: '',
    defaultText: 'the key of the Warren that runs in this clone',
    description: 'API key that `./warren ssh`, `tunnel` and `webhooks listen` use, together with `WARREN_BASE_URL`.',
  }),
}

export type InstanceConfig = {
  dataDir: string
  /** Holds the folder `postgres`. */
  databaseDir: string
  /** Set when the operator runs the database. */
  databaseUrl: string | undefined
  /** Set when the operator has a separate role for migrations. */
  migrateDatabaseUrl: string | undefined
  keyFile: string
  /** Encrypts secrets in the database, unless WARREN_SECRETS_KEY is set. */
  secretsKeyFile: string
  /** The API key of the deployment gateway. */
  gatewayKeyFile: string
  logDir: string
  instanceFile: string
  /** Holds the local certificate authority of ingress. */
  caDir: string
  gatewayDir: string
  /** The development chain of the gateway. */
  chainDir: string
}

/** The control plane owns it, if root has started Warren. */
export const CONTROL_PLANE_FOLDER = 'control-plane'

export function readInstanceConfig(env: NodeJS.ProcessEnv = process.env): InstanceConfig {
  const { dataDir: wanted, databaseDir, databaseUrl, migrateDatabaseUrl, caDir } = SETTINGS
  const config = readConfig({ dataDir: wanted, databaseDir, databaseUrl, migrateDatabaseUrl, caDir }, env)
  const dataDir = config.dataDir === '' ? path.join(ROOT, '.warren') : resolvePath(config.dataDir, env)
  return {
    dataDir,
    databaseDir: config.databaseDir === '' ? dataDir : resolvePath(config.databaseDir, env),
    databaseUrl: config.databaseUrl || undefined,
    migrateDatabaseUrl: (config.databaseUrl && config.migrateDatabaseUrl) || undefined,
    keyFile: path.join(dataDir, 'local.key'),
    secretsKeyFile: path.join(dataDir, 'secrets.key'),
    gatewayKeyFile: path.join(dataDir, 'gateway.key'),
    logDir: path.join(dataDir, 'log'),
    instanceFile: path.join(dataDir, 'instance.json'),
    caDir: config.caDir === '' ? path.join(dataDir, 'ingress') : resolvePath(config.caDir, env),
    gatewayDir: env.WARREN_GATEWAY_DATA_DIR
      ? resolvePath(env.WARREN_GATEWAY_DATA_DIR, env)
      : path.join(dataDir, 'gateway'),
    chainDir: path.join(dataDir, 'development-chain'),
  }
}

export type Listeners = ReturnType<typeof readListeners>

/** The addresses and ports on which the control plane will listen. */
export const readListeners = (env: NodeJS.ProcessEnv = process.env) => readConfig(LISTENERS, env)

export const areVmsEnabled = (env: NodeJS.ProcessEnv = process.env): boolean =>
  readConfig({ vms: SETTINGS.vms }, env).vms

export const isGatewayWanted = (env: NodeJS.ProcessEnv = process.env): boolean =>
  readConfig({ gateway: SETTINGS.gateway }, env).gateway
