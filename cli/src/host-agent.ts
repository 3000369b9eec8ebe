/**
 * Starts the host agent, which runs the virtual machines. It needs root; without it Warren serves everything else. The
 * first start builds the default image, which takes minutes and reports its progress.
 */
import path from 'node:path'
import { type Child, startChild } from './child.ts'
import { areVmsEnabled, CACHE_DIR, type InstanceConfig, ROOT } from './config.ts'

export type HostAgent = Child<{ socket: string }>

/** Long enough to build an image over a slow network; a start with all images present takes a second. */
const START_LIMIT_MS = 30 * 60_000
/** The host agent limits its own stop to 2 s (STOP_LIMIT_MS in host-agent/src/main.ts). */
const STOP_LIMIT_MS = 2_500

export const canRunVms = (env: NodeJS.ProcessEnv): boolean =>
  process.getuid?.() === 0 && process.arch === 'x64' && areVmsEnabled(env)

export const hostSocket = (config: InstanceConfig): string => path.join(config.dataDir, 'host.sock')

/** `WARREN_PORT=0`: its port is known only when the API listens. Nothing reaches it from a sandbox before. */
export async function openApiPort(hostAgent: HostAgent, port: number): Promise<void> {
  const isReply = (reply: object): reply is { failed?: string } => 'openedApiPort' in reply
  const { failed } = await hostAgent.request({ openApiPort: port }, isReply)
  if (failed !== undefined) throw new Error(`failed to open port ${port} of the API to sandboxes: ${failed}`)
}

export function startHostAgent(
  config: InstanceConfig,
  apiPort: number,
  callbacks: { onSpawn: (pid: number) => Promise<void>; onProgress: (text: string) => void },
  signal: AbortSignal,
): Promise<HostAgent> {
  return startChild<{ socket: string }>(
    {
      name: 'the host agent',
      command: process.execPath,
      args: [path.join(ROOT, 'host-agent/src/main.ts')],
      env: {
        ...process.env,
        WARREN_DATA_DIR: config.dataDir,
        WARREN_CACHE_DIR: CACHE_DIR,
        WARREN_HOST_SOCKET: hostSocket(config),
        WARREN_PORT: String(apiPort),
        WARREN_LOG_LEVEL: process.env.WARREN_LOG_LEVEL || 'warn',
      },
      startLimitMs: START_LIMIT_MS,
      stopLimitMs: STOP_LIMIT_MS,
      ...callbacks,
    },
    signal,
  )
}
