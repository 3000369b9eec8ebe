/**
 * A Node process that does part of the bench's work. It runs in a separate session, so that Ctrl-C reaches only the
 * bench, which decides the order of stopping. Its first message over the IPC channel says that it is ready. It exits
 * when the channel closes, so it does not outlive a bench that was killed.
 */
import { type ChildProcess, spawn } from 'node:child_process'
import path from 'node:path'
import { type Confinement, confine } from '@warren/kit/confine/confine'

export const ROOT = path.resolve(import.meta.dirname, '../..')

export type Child<Ready> = {
  ready: Ready
  /** Sends a message; the next message from the child is the response. */
  request<Response>(message: object): Promise<Response>
  stop(): Promise<void>
}

const START_LIMIT_MS = 60_000
const STOP_LIMIT_MS = 10_000

type Options = {
  args?: string[]
  env?: NodeJS.ProcessEnv
  /** As `warren start` confines it. */
  confinement?: Confinement | undefined
  hasPrivateMounts?: true
  stopLimitMs?: number
}

/** `script` is relative to the repository. Its stdout goes to our stderr, because our stdout is for results. */
export async function startChild<Ready>(script: string, options: Options = {}): Promise<Child<Ready>> {
  const line = [path.join(ROOT, script), ...(options.args ?? [])]
  const [command, args] = options.hasPrivateMounts
    ? withPrivateMounts(process.execPath, line)
    : confine(options.confinement, process.execPath, line)
  const child = spawn(command, args, {
    cwd: ROOT,
    stdio: ['ignore', process.stderr, 'inherit', 'ipc'],
    detached: true,
    env: { ...withoutSettings(process.env), ...options.env },
  })
  const ended = new Promise<never>((_, reject) => {
    child.once('error', (error) => reject(new Error(`failed to run ${script}`, { cause: error })))
    child.once('exit', (code, signal) => reject(new Error(`${script} ended (${signal ?? `exit status ${code}`})`)))
  })
  ended.catch(() => {}) // Each request races with it; there may be none.
  const next = <T>() => Promise.race([new Promise<T>((resolve) => child.once('message', resolve)), ended])
  const stop = () => stopChild(child, ended, options.stopLimitMs)

  const timer = setTimeout(() => child.kill('SIGKILL'), START_LIMIT_MS)
  try {
    const ready = await next<Ready>()
    return {
      ready,
      async request<Response>(message: object) {
        const response = next<Response>()
        child.send(message)
        return response
      },
      stop,
    }
  } finally {
    clearTimeout(timer)
  }
}

async function stopChild(child: ChildProcess, ended: Promise<never>, limitMs = STOP_LIMIT_MS): Promise<void> {
  if (child.connected) child.disconnect()
  const timer = setTimeout(() => child.kill('SIGKILL'), limitMs)
  await ended.catch(() => {})
  clearTimeout(timer)
}

/** With private mounts, so that it and the rest of the machine do not see each other's named network namespaces. */
const withPrivateMounts = (command: string, args: string[]): [string, string[]] => [
  'unshare',
  ['--mount', '--propagation', 'private', 'sh', '-c', HIDE_NAMESPACES, 'sh', command, ...args],
]
const HIDE_NAMESPACES = 'mkdir -p /run/netns && mount -t tmpfs none /run/netns && exec "$@"'

/** The settings of the person who runs the bench do not reach what is measured. */
const withoutSettings = (env: NodeJS.ProcessEnv): NodeJS.ProcessEnv =>
  Object.fromEntries(Object.entries(env).filter(([name]) => !/^(WARREN_|OTEL_|PG|DATABASE_URL$)/.test(name)))
