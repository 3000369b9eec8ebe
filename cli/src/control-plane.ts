/** Starts the control plane without the privileges of root. */
import path from 'node:path'
import { asUnprivileged } from '@warren/kit/unprivileged'
import { type Child, startChild } from './child.ts'
import { ROOT } from './config.ts'

export type ControlPlane = Child<{
  baseUrl: string
  port: number
  metricsUrl: string
  ingressUrl?: string
  ingressPort?: number
}>

const START_LIMIT_MS = 60_000
/** The control plane limits its own stop to 3 s (STOP_LIMIT_MS in control-plane/src/main.ts). */
const STOP_LIMIT_MS = 3_500

/** It looks for hosts every second as well, but the first create must not have to wait for that. */
export async function findHosts(controlPlane: ControlPlane): Promise<void> {
  const isReply = (reply: object): reply is { foundHosts: true } => 'foundHosts' in reply
  await controlPlane.request({ findHosts: true }, isReply)
}

export function startControlPlane(
  env: NodeJS.ProcessEnv,
  onSpawn: (pid: number) => Promise<void>,
  signal: AbortSignal,
): Promise<ControlPlane> {
  const [command, args] = asUnprivileged(process.execPath, [path.join(ROOT, 'control-plane/src/main.ts')])
  const limits = { startLimitMs: START_LIMIT_MS, stopLimitMs: STOP_LIMIT_MS }
  return startChild({ name: 'the control plane', command, args, env, onSpawn, ...limits }, signal)
}
