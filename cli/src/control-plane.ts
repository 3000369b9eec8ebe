/** Starts the control plane, as root in a jail. */
import path from 'node:path'
import { Type } from 'typebox'
import { type Child, startChild } from './child.ts'
import { ControlPlaneListening, ControlPlaneReady, type ControlPlaneUrls, Failed } from './child-messages.ts'
import type { InstanceConfig } from './config.ts'
import { prepareService, type ServicePlan } from './confined-service.ts'
import { controlPlaneFolder } from './data-layout.ts'
import { AUTHORITY_FILES, checkDedicated } from './own-folders.ts'
import { findSocketFolder, listFiles } from './service-env.ts'
import { printable } from './service-output.ts'

export type ControlPlane = Child<ControlPlaneUrls>

const START_LIMIT_MS = 60_000
/** The control plane limits its own stop to 3 s (STOP_LIMIT_MS in control-plane/src/main.ts). */
const STOP_LIMIT_MS = 3_500

const WORKSPACES = ['control-plane', 'kit', 'protocol', 'dockerfile']

/** Starts it up to the point where it could listen. */
export async function prepareControlPlane(
  config: InstanceConfig,
  env: NodeJS.ProcessEnv,
  onSpawn: (pid: number) => Promise<void>,
  signal: AbortSignal,
): Promise<Child<object>> {
  const setting = 'WARREN_INGRESS_CA_DIR'
  if (process.env[setting])
    await checkDedicated(config, 'control-plane', config.caDir, { setting, files: AUTHORITY_FILES })
  const prepared = await prepareService(config, planControlPlane(config, env))
  const limits = { startLimitMs: START_LIMIT_MS, stopLimitMs: STOP_LIMIT_MS }
  const messages = { ready: ControlPlaneReady, replies: [ControlPlaneListening] }
  return startChild({ name: 'the control plane', ...messages, ...prepared, onSpawn, ...limits }, signal)
}

/** What it needs of the machine. */
export const planControlPlane = (config: InstanceConfig, env: NodeJS.ProcessEnv): ServicePlan => ({
  service: 'control-plane',
  program: 'control-plane/src/main.ts',
  workspaces: WORKSPACES,
  env,
  own: [controlPlaneFolder(config), config.caDir],
  read: [findSocketFolder(env.DATABASE_URL ?? ''), findFolder(env.WARREN_HOST_SOCKET)].filter(
    (folder) => folder !== undefined,
  ),
  files: listFiles('control-plane', env),
})

const findFolder = (file: string | undefined): string | undefined => (file ? path.dirname(file) : undefined)

/** To be called when the host agent is ready: it adds an address at which the API listens, and the API looks for hosts. */
export async function listen(prepared: Child<object>): Promise<ControlPlane> {
  const reply = await prepared.request({ listen: true }, Type.Union([ControlPlaneListening, Failed]))
  if ('failed' in reply) throw new Error(`the control plane did not start: ${printable(reply.failed)}`)
  return { ...prepared, ...reply }
}
