/**
 * Starts a service as a child process and waits until it reports that it is ready.
 *
 * The child runs in its own session, so Ctrl-C reaches only this process, which then stops the services in order. The
 * channel between them (child-channel.ts) closes when this process dies; the child then stops automatically.
 *
 * What the child logs appears on our stdout. Its stderr, used for an invalid setting or a crash of Node, is buffered while
 * it starts, so that it appears after the line of the step that is being printed.
 */
import { type ChildProcess, spawn } from 'node:child_process'
import type { Static, TSchema } from 'typebox'
import { Value } from 'typebox/value'
import { type ChildChannel, channelEnv, channelStdio, openChildChannel } from './child-channel.ts'
import { Failed, Progress } from './child-messages.ts'
import { copyToStdout, keepOutput, printable } from './service-output.ts'

export type Child<Ready> = Ready & {
  exited: Promise<string>
  stop(): Promise<void>
  /** Sends a message and waits for one of the given form. */
  request<Reply extends TSchema>(message: object, reply: Reply): Promise<Static<Reply>>
}

/** A reply takes milliseconds; a busy machine may need seconds. */
const REPLY_LIMIT_MS = 20_000

export type ChildSettings<Ready extends TSchema = TSchema> = {
  /** As messages name it: "the control plane". */
  name: string
  /** The form of the message that says that it is ready, and those of its replies. */
  ready: Ready
  replies?: readonly TSchema[]
  command: string
  args: string[]
  env: NodeJS.ProcessEnv
  startLimitMs: number
  stopLimitMs: number
  /** Called as soon as the process exists, long before it is ready. */
  onSpawn: (pid: number) => Promise<void>
  onProgress?: (text: string) => void
  /** Called when the process has ended, also when it was never ready. */
  onExit?: (exit: { isClean: boolean }) => void
  /** Whether it runs in a jail, and so is not trusted. */
  isConfined?: boolean
  /** Removes what was prepared for the process. The child counts as ended when it has. */
  release?: () => Promise<void>
}

export async function startChild<Ready extends TSchema>(
  settings: ChildSettings<Ready>,
  signal: AbortSignal,
): Promise<Child<Static<Ready> & object>> {
  const { command, args, name, isConfined = false } = settings
  const hasTerminal = process.stdout.isTTY === true && isConfined
  const child = spawn(command, args, {
    stdio: ['ignore', isConfined ? 'pipe' : 'inherit', 'pipe', channelStdio(isConfined)],
    detached: true,
    env: {
      ...settings.env,
      ...(hasTerminal ? { WARREN_LOG_FORMAT: settings.env.WARREN_LOG_FORMAT || 'pretty' } : {}),
      ...channelEnv(isConfined),
    },
  })
  if (child.stdout) copyToStdout(child.stdout)
  const exited = new Promise<string>((resolve) => {
    const end = (reason: string) => void (settings.release?.() ?? Promise.resolve()).finally(() => resolve(reason))
    child.once('error', (error) => end(error.message))
    child.once('close', (code, name) => {
      settings.onExit?.({ isClean: code === 0 })
      end(name ? `ended by ${name}` : `exit status ${code}`)
    })
  })
  const stop = () => stopChild(child, exited, settings.stopLimitMs)
  const stderr = keepOutput(child.stderr!) // Not null: stdio asks for a pipe.
  try {
    const known = [Progress, Failed, settings.ready, ...(settings.replies ?? [])]
    const isKnown = (message: unknown) => known.some((schema) => Value.Check(schema, message))
    const channel = openChildChannel(child, { name, isConfined, isKnown })
    const ready = waitUntilReady(channel, settings, exited, stderr, signal)
    await Promise.all([ready, child.pid && settings.onSpawn(child.pid)])
    return {
      ...(await ready),
      exited,
      stop,
      request: <Reply extends TSchema>(message: object, reply: Reply) =>
        sendRequest(channel, name, message, reply, exited),
    }
  } catch (error) {
    await stop()
    throw error
  } finally {
    stderr.release()
  }
}

async function waitUntilReady<Ready extends TSchema>(
  channel: ChildChannel,
  { name, ready, startLimitMs, onProgress = () => {} }: ChildSettings<Ready>,
  exited: Promise<string>,
  stderr: { take(): string },
  signal: AbortSignal,
): Promise<Static<Ready> & object> {
  const limit = AbortSignal.any([signal, AbortSignal.timeout(startLimitMs)])
  const { promise, resolve, reject } = Promise.withResolvers<Static<Ready> & object>()
  channel.onMessage((message) => {
    if (Value.Check(Progress, message)) onProgress(printable(message.progress))
    else if (Value.Check(ready, message)) resolve(message as Static<Ready> & object)
    else if (Value.Check(Failed, message)) reject(new Error(`${name} did not start: ${printable(message.failed)}`))
  })
  void exited.then((reason) => reject(new Error(`${name} did not start (${reason})\n${stderr.take()}`.trim())))
  limit.addEventListener('abort', () =>
    reject(signal.aborted ? signal.reason : new Error(`${name} did not start within ${startLimitMs / 1000} s`)),
  )
  return promise
}

async function sendRequest<Reply extends TSchema>(
  channel: ChildChannel,
  name: string,
  message: object,
  schema: Reply,
  exited: Promise<string>,
): Promise<Static<Reply>> {
  const { promise, resolve, reject } = Promise.withResolvers<Static<Reply>>()
  const removeListener = channel.onMessage((reply) => {
    if (Value.Check(schema, reply)) resolve(reply)
  })
  const timer = setTimeout(() => reject(new Error(`${name} did not reply within ${REPLY_LIMIT_MS} ms`)), REPLY_LIMIT_MS)
  void exited.then((reason) => reject(new Error(`${name} ended before it replied (${reason})`)))
  try {
    channel.send(message)
    return await promise
  } finally {
    clearTimeout(timer)
    removeListener()
  }
}

async function stopChild(child: ChildProcess, exited: Promise<string>, limitMs: number): Promise<void> {
  if (child.exitCode === null && child.signalCode === null) child.kill('SIGTERM')
  const timer = setTimeout(() => child.kill('SIGKILL'), limitMs)
  await exited
  clearTimeout(timer)
}
