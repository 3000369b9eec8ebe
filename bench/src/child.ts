/**
 * A Node process that works for us: in a session of its own, so that Ctrl-C reaches only us and the order of stopping
 * is ours. It says once over the channel that it is ready; when the channel closes it ends by itself, so one whose
 * parent was killed does not stay behind either.
 */
import { type ChildProcess, spawn } from 'node:child_process'
import path from 'node:path'
import { unprivileged } from '@warren/kit/unprivileged'

export const ROOT = path.resolve(import.meta.dirname, '../..')

export type Child<Ready> = {
  ready: Ready
  /** The next message it sends is the answer. */
  ask<Answer>(question: object): Promise<Answer>
  stop(): Promise<void>
}

const START_LIMIT_MS = 60_000
const STOP_LIMIT_MS = 10_000

/** `script` is relative to the repository. Its standard output joins our standard error: ours is for results. */
export async function startChild<Ready>(
  script: string,
  options: { args?: string[]; env?: NodeJS.ProcessEnv; asRoot?: true; stopLimitMs?: number } = {},
): Promise<Child<Ready>> {
  const line = [path.join(ROOT, script), ...(options.args ?? [])]
  const [command, args] = options.asRoot ? apart(process.execPath, line) : unprivileged(process.execPath, line)
  const child = spawn(command, args, {
    cwd: ROOT,
    stdio: ['ignore', process.stderr, 'inherit', 'ipc'],
    detached: true,
    env: { ...withoutSettings(process.env), ...options.env },
  })
  const ended = new Promise<never>((_, reject) => {
    child.once('error', (error) => reject(new Error(`could not run ${script}`, { cause: error })))
    child.once('exit', (code, signal) => reject(new Error(`${script} ended (${signal ?? `exit status ${code}`})`)))
  })
  ended.catch(() => {}) // Whoever waits for the child races with it; nobody may be waiting.
  const next = <T>() => Promise.race([new Promise<T>((resolve) => child.once('message', resolve)), ended])
  const stop = () => stopChild(child, ended, options.stopLimitMs)

  const timer = setTimeout(() => child.kill('SIGKILL'), START_LIMIT_MS)
  try {
    const ready = await next<Ready>()
    return {
      ready,
      async ask<Answer>(question: object) {
        const answer = next<Answer>()
        child.send(question)
        return answer
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

/** With mounts of its own, and no named namespace in sight: what it makes nobody else sees, and the other way round. */
const apart = (command: string, args: string[]): [string, string[]] => [
  'unshare',
  ['--mount', '--propagation', 'private', 'sh', '-c', HIDE_NAMESPACES, 'sh', command, ...args],
]
const HIDE_NAMESPACES = 'mkdir -p /run/netns && mount -t tmpfs none /run/netns && exec "$@"'

/** The settings of whoever runs the bench are not what is measured. */
const withoutSettings = (env: NodeJS.ProcessEnv): NodeJS.ProcessEnv =>
  Object.fromEntries(Object.entries(env).filter(([name]) => !/^(WARREN_|OTEL_|PG|DATABASE_URL$)/.test(name)))
