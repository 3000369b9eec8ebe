/**
 * The host agent, which runs the virtual machines. It needs root; without it Warren serves everything else. The first
 * start builds the default image, which takes minutes and is shown.
 */
import path from 'node:path'
import { type Child, startChild } from './child.ts'
import { type Box, CACHE_DIR, ROOT } from './config.ts'

export type HostAgent = Child<{ socket: string }>

/** A build over a slow network; a start with everything there takes a second. */
const START_LIMIT_MS = 30 * 60_000
/** It has 2 s of its own. */
const STOP_LIMIT_MS = 2_500

export const canRunVms = (env: NodeJS.ProcessEnv): boolean =>
  process.getuid?.() === 0 && process.arch === 'x64' && env.WARREN_VMS !== 'off'

export const hostSocket = (box: Box): string => path.join(box.dataDir, 'host.sock')

export function startHostAgent(
  box: Box,
  told: { spawned: (pid: number) => Promise<void>; progress: (text: string) => void },
  signal: AbortSignal,
): Promise<HostAgent> {
  return startChild<{ socket: string }>(
    {
      name: 'the host agent',
      command: process.execPath,
      args: [path.join(ROOT, 'host-agent/src/main.ts')],
      env: {
        ...process.env,
        WARREN_DATA_DIR: box.dataDir,
        WARREN_CACHE_DIR: CACHE_DIR,
        WARREN_HOST_SOCKET: hostSocket(box),
        WARREN_LOG_LEVEL: process.env.WARREN_LOG_LEVEL || 'warn',
      },
      startLimitMs: START_LIMIT_MS,
      stopLimitMs: STOP_LIMIT_MS,
      ...told,
    },
    signal,
  )
}
