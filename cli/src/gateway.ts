/**
 * Starts the deployment gateway. With settings that say where payments go and which chains are read it is in production; without
 * any of them, on a machine that serves itself only, it gets a development chain, whose money is worth nothing. Like the
 * control plane, both run in jails if root starts them.
 */
import path from 'node:path'
import { readConfig } from '@warren/kit/config'
import { GATEWAY_LISTENERS, isLoopback, LISTENERS } from '@warren/kit/shared-settings'
import type { Static } from 'typebox'
import { type Child, startChild } from './child.ts'
import { DevelopmentChainReady, GatewayReady } from './child-messages.ts'
import { type InstanceConfig, isGatewayWanted } from './config.ts'
import { prepareService, type ServicePlan } from './confined-service.ts'
import { moveChain } from './data-layout.ts'
import { canRunVms } from './host-agent.ts'
import { migrateDatabase } from './migrate.ts'
import { AUTHORITY_FILES, checkDedicated, GATEWAY_FILES } from './own-folders.ts'
import { findSocketFolder, listFiles, serviceEnv } from './service-env.ts'

export type Gateway = Child<Static<typeof GatewayReady>>
export type DevelopmentChain = Child<Static<typeof DevelopmentChainReady>>

const REQUIRED = ['WARREN_GATEWAY_PAY_TO', 'WARREN_GATEWAY_RPC_ARBITRUM', 'WARREN_GATEWAY_RPC_BASE']
const START_LIMIT_MS = 60_000
/** The gateway limits its own stop to 3 s (STOP_LIMIT_MS in gateway/src/main.ts). */
const STOP_LIMIT_MS = 3_500

/** `missing` names settings without which it stays off; empty if it is not wanted. */
export type GatewayPlan = { kind: 'production' | 'development' } | { kind: 'off'; missing: string[] }

export function planGateway(env: NodeJS.ProcessEnv, hasVms = canRunVms(env)): GatewayPlan {
  if (!isGatewayWanted(env)) return { kind: 'off', missing: [] }
  const missing = REQUIRED.filter((name) => !env[name])
  if (missing.length === 0) return { kind: 'production' }
  if (missing.length < REQUIRED.length) return { kind: 'off', missing }
  // Nothing can be deployed without virtual machines.
  if (!hasVms) return { kind: 'off', missing: [] }
  return servesThisMachineOnly(env) ? { kind: 'development' } : { kind: 'off', missing }
}

function servesThisMachineOnly(env: NodeJS.ProcessEnv): boolean {
  const { host, appsHost } = readConfig(GATEWAY_LISTENERS, env)
  return [host, appsHost || host, readConfig(LISTENERS, env).host].every(isLoopback)
}

const LIMITS = { startLimitMs: START_LIMIT_MS, stopLimitMs: STOP_LIMIT_MS }
const WORKSPACES = ['gateway', 'kit', 'protocol', 'dockerfile']
const NO_DATABASE = { databaseUrl: '', isExternal: false }

export async function startDevelopmentChain(
  config: InstanceConfig,
  previous: DevelopmentChain | undefined,
  onSpawn: (pid: number) => Promise<void>,
  signal: AbortSignal,
): Promise<DevelopmentChain> {
  await moveChain(config)
  const env = {
    ...serviceEnv('development-chain', NO_DATABASE),
    WARREN_DEV_CHAIN_DIR: config.chainDir,
    // The gateway, and clients of the chain, have the URLs of the first start.
    WARREN_DEV_CHAIN_PORTS: (previous?.ports ?? [0, 0]).join(),
  }
  const prepared = await prepareService(config, {
    service: 'development-chain',
    program: 'gateway/src/dev-chain/main.ts',
    workspaces: WORKSPACES,
    env,
    own: [config.chainDir],
    read: [],
    files: listFiles('development-chain', env),
  })
  const ready = DevelopmentChainReady
  return startChild({ name: 'the development chain', ready, ...prepared, onSpawn, ...LIMITS }, signal)
}

/** Of the development chain: it sends payments, and the other one has money for its user. */
const settlerKeyFile = (config: InstanceConfig): string => path.join(config.chainDir, 'settler.key')
export const walletKeyFile = (config: InstanceConfig): string => path.join(config.chainDir, 'wallet.key')

export type GatewayAccess = { databaseUrl: string; baseUrl: string; chain: DevelopmentChain | undefined }

export async function startGateway(
  config: InstanceConfig,
  access: GatewayAccess,
  previous: Gateway | undefined,
  onSpawn: (pid: number) => Promise<void>,
  signal: AbortSignal,
): Promise<Gateway> {
  const database = await migrateDatabase(config, access.databaseUrl, 'gateway', signal)
  const own = { ...database.env, ...samePorts(previous) }
  const env = { ...gatewayEnv(config, { ...access, databaseUrl: database.databaseUrl }), ...own }
  await checkFolders(config, env)
  const prepared = await prepareService(config, planGatewayService(config, env))
  return startChild({ name: 'the gateway', ready: GatewayReady, ...prepared, onSpawn, ...LIMITS }, signal)
}

/** Those that settings name. */
async function checkFolders(config: InstanceConfig, env: NodeJS.ProcessEnv): Promise<void> {
  const authority = 'WARREN_GATEWAY_APPS_CA_DIR'
  const data = 'WARREN_GATEWAY_DATA_DIR'
  if (env[authority])
    await checkDedicated(config, 'gateway', path.resolve(env[authority]), {
      setting: authority,
      files: AUTHORITY_FILES,
    })
  if (process.env[data])
    await checkDedicated(config, 'gateway', config.gatewayDir, { setting: data, files: GATEWAY_FILES })
}

/** What it needs of the machine. */
export function planGatewayService(config: InstanceConfig, env: NodeJS.ProcessEnv): ServicePlan {
  const authority = env.WARREN_GATEWAY_APPS_CA_DIR ? path.resolve(env.WARREN_GATEWAY_APPS_CA_DIR) : undefined
  const socketFolder = findSocketFolder(env.DATABASE_URL ?? '')
  const ofChain = settlerKeyFile(config)
  const files = listFiles('gateway', env)
  return {
    service: 'gateway',
    program: 'gateway/src/main.ts',
    workspaces: WORKSPACES,
    env: authority ? { ...env, WARREN_GATEWAY_APPS_CA_DIR: authority } : env,
    own: [config.gatewayDir, ...(authority ? [authority] : [])],
    read: socketFolder ? [socketFolder] : [],
    files: files.filter((file) => file !== ofChain),
    filesOfServices: files.filter((file) => file === ofChain),
  }
}

const gatewayEnv = (config: InstanceConfig, { databaseUrl, baseUrl, chain }: GatewayAccess): NodeJS.ProcessEnv => {
  const env = serviceEnv('gateway', { databaseUrl, isExternal: config.databaseUrl !== undefined })
  return {
    ...env,
    WARREN_GATEWAY_CONTROL_PLANE_URL: env.WARREN_GATEWAY_CONTROL_PLANE_URL || baseUrl,
    WARREN_GATEWAY_KEY_FILE: env.WARREN_GATEWAY_KEY_FILE || config.gatewayKeyFile,
    WARREN_GATEWAY_DATA_DIR: config.gatewayDir,
    WARREN_LOG_LEVEL: env.WARREN_LOG_LEVEL || 'warn',
    ...(chain ? developmentEnv(config, chain) : {}),
  }
}

const developmentEnv = (config: InstanceConfig, chain: DevelopmentChain): NodeJS.ProcessEnv => ({
  WARREN_GATEWAY_DEVELOPMENT: 'true',
  WARREN_GATEWAY_PAY_TO: chain.payTo,
  WARREN_GATEWAY_RPC_ARBITRUM: chain.rpcArbitrum,
  WARREN_GATEWAY_RPC_BASE: chain.rpcBase,
  WARREN_GATEWAY_SETTLER_KEY: '',
  WARREN_GATEWAY_SETTLER_KEY_FILE: settlerKeyFile(config),
})

/** A restarted gateway listens on the ports that the system chose at the first start, because clients use them. */
function samePorts(previous: Gateway | undefined): NodeJS.ProcessEnv {
  if (previous === undefined) return {}
  return {
    WARREN_GATEWAY_PORT: String(previous.port),
    WARREN_GATEWAY_APPS_PORT: String(previous.appsPort),
    WARREN_GATEWAY_METRICS_PORT: String(previous.metricsPort),
  }
}
