/** The control plane, without root's powers. */
import path from 'node:path'
import { unprivileged } from '@warren/kit/unprivileged'
import { type Child, startChild } from './child.ts'
import { ROOT } from './config.ts'

export type ControlPlane = Child<{
  baseUrl: string
  metricsUrl: string
  ingressUrl?: string
  ingressPort?: number
}>

const START_LIMIT_MS = 60_000
/** With what the others may take after it, under the 10 s for everything. */
const STOP_LIMIT_MS = 4_500

export function startControlPlane(
  env: NodeJS.ProcessEnv,
  spawned: (pid: number) => Promise<void>,
  signal: AbortSignal,
): Promise<ControlPlane> {
  const [command, args] = unprivileged(process.execPath, [path.join(ROOT, 'control-plane/src/main.ts')])
  const limits = { startLimitMs: START_LIMIT_MS, stopLimitMs: STOP_LIMIT_MS }
  return startChild({ name: 'the control plane', command, args, env, spawned, ...limits }, signal)
}
