/**
 * Starts the host agent, which runs the virtual machines. It needs root; without it Warren serves everything else. The
 * first start builds the default image, which takes minutes and reports its progress.
 */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { chmod, chown, mkdir, rm } from 'node:fs/promises'
import path from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { withCapabilities } from '@warren/kit/capabilities'
import { claimServiceIds } from '@warren/kit/confine/claim-ids'
import { serviceUser } from '@warren/kit/confine/services'
import { instanceName } from '@warren/kit/instance-name'
import type { Static } from 'typebox'
import { type Child, type ChildSettings, startChild } from './child.ts'
import { HostAgentReady, OpenedApiPort } from './child-messages.ts'
import { areVmsEnabled, CACHE_DIR, type InstanceConfig, ROOT } from './config.ts'
import { removeOldSocket } from './data-layout.ts'

export type HostAgent = Child<Static<typeof HostAgentReady>>

/** Long enough to build an image over a slow network; a start with all images present takes a second. */
const START_LIMIT_MS = 30 * 60_000
/** The host agent limits its own stop to 5 s (STOP_LIMIT_MS in host-agent/src/main.ts). */
const STOP_LIMIT_MS = 5_500
/**
 * What it does takes less than a second; it first waits for child processes of the killed host agent to exit. The limit is
 * for a machine so slow that the host agent could not stop in time: there it needs seconds, and without it all stays.
 */
const CLEAN_UP_LIMIT_MS = 20_000

export const canRunVms = (env: NodeJS.ProcessEnv): boolean =>
  process.getuid?.() === 0 && process.arch === 'x64' && areVmsEnabled(env)

/** sun_path holds 108 bytes with the final NUL. */
const SOCKET_PATH_MAX_BYTES = 107

/** In a folder with nothing else, which the control plane can be given. Elsewhere if its path is too long for a socket. */
export function hostSocket({ dataDir }: InstanceConfig): string {
  const socket = path.join(dataDir, 'host-socket/host.sock')
  if (Buffer.byteLength(socket) <= SOCKET_PATH_MAX_BYTES) return socket
  return `/run/warren-${instanceName(dataDir)}-host/host.sock`
}

/** Returns the group that may connect: that of the control plane. */
async function makeSocketFolder(config: InstanceConfig, ids: number): Promise<number> {
  const { gid } = serviceUser(ids, 'control-plane')
  const folder = path.dirname(hostSocket(config))
  await removeOldSocket(config)
  await mkdir(folder, { recursive: true, mode: 0o700 })
  await chown(folder, 0, gid)
  await chmod(folder, 0o750)
  return gid
}

/** Outside the data directory nothing is left behind. */
export async function removeSocketFolder(config: InstanceConfig): Promise<void> {
  const folder = path.dirname(hostSocket(config))
  if (!folder.startsWith(`${config.dataDir}/`)) await rm(folder, { recursive: true, force: true })
}

/**
 * `WARREN_PORT=0`: its port is known only when the API listens. Nothing reaches it from a sandbox before. A host agent that
 * ends meanwhile is no failure: the supervisor starts the next one with the port among its settings.
 */
export async function openApiPort(hostAgent: HostAgent, port: number): Promise<void> {
  const asked = hostAgent.request({ openApiPort: port }, OpenedApiPort).catch(async (error) => {
    if (await hasEnded(hostAgent)) return { failed: undefined }
    throw error
  })
  const { failed } = await asked
  if (failed !== undefined) throw new Error(`failed to open port ${port} of the API to sandboxes: ${failed}`)
}

/** A closed channel can be noticed before the exit. */
const EXIT_NOTICED_MS = 1_000

const hasEnded = (hostAgent: HostAgent): Promise<boolean> =>
  Promise.race([hostAgent.exited.then(() => true), delay(EXIT_NOTICED_MS, false)])

export async function startHostAgent(
  config: InstanceConfig,
  apiPort: number,
  callbacks: Required<Pick<ChildSettings, 'onSpawn' | 'onProgress' | 'onExit'>>,
  signal: AbortSignal,
): Promise<HostAgent> {
  const ids = (await claimServiceIds(config.dataDir))! // Only root runs a host agent.
  const { uid: proxyUid } = serviceUser(ids, 'egress-proxy')
  const { uid: s3ProxyUid } = serviceUser(ids, 'signing-proxy')
  const socketGroup = await makeSocketFolder(config, ids)
  const [command, args] = asHostAgent('main.ts')
  return startChild(
    {
      name: 'the host agent',
      ready: HostAgentReady,
      replies: [OpenedApiPort],
      command,
      args,
      env: {
        ...renderEnv(config),
        WARREN_PORT: String(apiPort),
        WARREN_EGRESS_PROXY_UID: String(proxyUid),
        WARREN_S3_PROXY_UID: String(s3ProxyUid),
        WARREN_HOST_SOCKET_GROUP: String(socketGroup),
      },
      startLimitMs: START_LIMIT_MS,
      stopLimitMs: STOP_LIMIT_MS,
      ...callbacks,
    },
    signal,
  )
}

/**
 * Removes what a host agent left on the machine that was killed or did not stop in time. Sandboxes keep running. The next
 * start would do the same, but there may be none.
 */
export async function cleanUpAfterHostAgent(config: InstanceConfig): Promise<void> {
  const child = spawn(...asHostAgent('clean-up/main.ts'), {
    stdio: ['ignore', 'inherit', 'inherit'],
    detached: true, // Ctrl-C is meant for this process, which waits.
    env: renderEnv(config),
    timeout: CLEAN_UP_LIMIT_MS,
    killSignal: 'SIGKILL',
  })
  const [code, name] = (await once(child, 'exit')) as [number | null, NodeJS.Signals | null]
  if (code === 0) return
  throw new Error(
    `failed to clean up after the host agent (${name ?? `exit status ${code}`}); the next start on ${config.dataDir} does`,
  )
}

/** The command line of a program of the host agent, without the capabilities that it does not need. */
function asHostAgent(name: string): [string, string[]] {
  const program = path.join(ROOT, 'host-agent/src', name)
  return withCapabilities('hostAgent', program, process.execPath, [program])
}

const renderEnv = (config: InstanceConfig): NodeJS.ProcessEnv => ({
  ...process.env,
  WARREN_DATA_DIR: config.dataDir,
  WARREN_CACHE_DIR: CACHE_DIR,
  WARREN_HOST_SOCKET: hostSocket(config),
  WARREN_LOG_LEVEL: process.env.WARREN_LOG_LEVEL || 'warn',
})
