/** Starts the control plane without the privileges of root. */
import path from 'node:path'
import { asUnprivileged } from '@warren/kit/unprivileged'
import { type Child, startChild } from './child.ts'
import { ROOT } from './config.ts'

type Urls = {
  baseUrl: string
  port: number
  metricsUrl: string
  ingressUrl?: string
  ingressPort?: number
}

export type ControlPlane = Child<Urls>

const START_LIMIT_MS = 60_000
/** The control plane limits its own stop to 3 s (STOP_LIMIT_MS in control-plane/src/main.ts). */
const STOP_LIMIT_MS = 3_500

/** Starts it up to the point where it could listen. */
export function prepareControlPlane(
  env: NodeJS.ProcessEnv,
  onSpawn: (pid: number) => Promise<void>,
  signal: AbortSignal,
): Promise<Child<object>> {
  const [command, args] = asUnprivileged(process.execPath, [path.join(ROOT, 'control-plane/src/main.ts')])
  const limits = { startLimitMs: START_LIMIT_MS, stopLimitMs: STOP_LIMIT_MS }
  return startChild({ name: 'the control plane', command, args, env, onSpawn, ...limits }, signal)
}

/** To be called when the host agent is ready: it adds an address at which the API listens, and the API looks for hosts. */
export async function listen(prepared: Child<object>): Promise<ControlPlane> {
  const isReply = (reply: object): reply is Urls | { failed: string } => 'listening' in reply || 'failed' in reply
  const reply = await prepared.request({ listen: true }, isReply)
  if ('failed' in reply) throw new Error(`the control plane did not start: ${reply.failed}`)
  return { ...prepared, ...reply }
}
