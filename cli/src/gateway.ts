/**
 * Starts the deployment gateway. With settings that say where payments go and which chains are read it is in production; without
 * any of them, on a machine that serves itself only, it gets a development chain, whose money is worth nothing. Like the
 * control plane, both run without the privileges of root.
 */
import path from 'node:path'
import { readConfig } from '@warren/kit/config'
import { GATEWAY_LISTENERS, isLoopback, LISTENERS } from '@warren/kit/shared-settings'
import { asUnprivileged } from '@warren/kit/unprivileged'
import { type Child, startChild } from './child.ts'
import { type InstanceConfig, isGatewayWanted, ROOT } from './config.ts'
import { canRunVms } from './host-agent.ts'

type Urls = { url: string; port: number; appsUrl: string; appsPort: number; metricsPort: number }
export type Gateway = Child<Urls>
export type DevelopmentChain = Child<{
  rpcArbitrum: string
  rpcBase: string
  ports: number[]
  payTo: string
  walletKeyFile: string
  settlerKeyFile: string
}>

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

export function startDevelopmentChain(
  config: InstanceConfig,
  previous: DevelopmentChain | undefined,
  onSpawn: (pid: number) => Promise<void>,
  signal: AbortSignal,
): Promise<DevelopmentChain> {
  const [command, args] = asUnprivileged(process.execPath, [path.join(ROOT, 'gateway/src/dev-chain/main.ts')])
  const limits = { startLimitMs: START_LIMIT_MS, stopLimitMs: STOP_LIMIT_MS }
  const env = {
    ...process.env,
    WARREN_DEV_CHAIN_DIR: path.join(config.dataDir, 'gateway/chain'),
    // The gateway, and clients of the chain, have the URLs of the first start.
    WARREN_DEV_CHAIN_PORTS: (previous?.ports ?? [0, 0]).join(),
  }
  return startChild({ name: 'the development chain', command, args, env, onSpawn, ...limits }, signal)
}

export type GatewayAccess = { databaseUrl: string; baseUrl: string; chain: DevelopmentChain | undefined }

export function startGateway(
  config: InstanceConfig,
  access: GatewayAccess,
  previous: Gateway | undefined,
  onSpawn: (pid: number) => Promise<void>,
  signal: AbortSignal,
): Promise<Gateway> {
  const [command, args] = asUnprivileged(process.execPath, [path.join(ROOT, 'gateway/src/main.ts')])
  const limits = { startLimitMs: START_LIMIT_MS, stopLimitMs: STOP_LIMIT_MS }
  const env = { ...gatewayEnv(config, access), ...samePorts(previous) }
  return startChild<Urls>({ name: 'the gateway', command, args, env, onSpawn, ...limits }, signal)
}

const gatewayEnv = (config: InstanceConfig, { databaseUrl, baseUrl, chain }: GatewayAccess): NodeJS.ProcessEnv => ({
  ...process.env,
  DATABASE_URL: databaseUrl,
  WARREN_GATEWAY_CONTROL_PLANE_URL: process.env.WARREN_GATEWAY_CONTROL_PLANE_URL || baseUrl,
  WARREN_GATEWAY_KEY_FILE: process.env.WARREN_GATEWAY_KEY_FILE || config.gatewayKeyFile,
  WARREN_GATEWAY_DATA_DIR: process.env.WARREN_GATEWAY_DATA_DIR || path.join(config.dataDir, 'gateway'),
  WARREN_LOG_LEVEL: process.env.WARREN_LOG_LEVEL || 'warn',
  ...(chain ? developmentEnv(chain) : {}),
})

const developmentEnv = (chain: DevelopmentChain): NodeJS.ProcessEnv => ({
  WARREN_GATEWAY_DEVELOPMENT: 'true',
  WARREN_GATEWAY_PAY_TO: chain.payTo,
  WARREN_GATEWAY_RPC_ARBITRUM: chain.rpcArbitrum,
  WARREN_GATEWAY_RPC_BASE: chain.rpcBase,
  WARREN_GATEWAY_SETTLER_KEY: '',
  WARREN_GATEWAY_SETTLER_KEY_FILE: chain.settlerKeyFile,
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
