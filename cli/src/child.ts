/**
 * Starts a service as a child process and waits until it reports that it is ready.
 *
 * The child runs in its own session, so Ctrl-C reaches only this process, which then stops the services in order. The
 * IPC channel between them closes when this process dies; the child then stops automatically.
 *
 * The child writes its log to our stdout. Its stderr, used for an invalid setting or a crash of Node, is buffered while
 * it starts, so that it appears after the line of the step that is being printed.
 */
import { type ChildProcess, spawn } from 'node:child_process'
import type { Readable } from 'node:stream'
import type { Static, TSchema } from 'typebox'
import { Value } from 'typebox/value'
import { Failed, Progress } from './child-messages.ts'
import { print } from './output.ts'

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
  /** Then it does not get our terminal, from which it could read what is typed. */
  isConfined?: boolean
  /** Removes what was prepared for the process. The child counts as ended when it has. */
  release?: () => Promise<void>
}

export async function startChild<Ready extends TSchema>(
  settings: ChildSettings<Ready>,
  signal: AbortSignal,
): Promise<Child<Static<Ready> & object>> {
  const { command, args } = settings
  const hasTerminal = process.stdout.isTTY === true && settings.isConfined === true
  const env = hasTerminal
    ? { ...settings.env, WARREN_LOG_FORMAT: settings.env.WARREN_LOG_FORMAT || 'pretty' }
    : settings.env
  const stdout = hasTerminal ? 'pipe' : 'inherit'
  const child = spawn(command, args, { stdio: ['ignore', stdout, 'pipe', 'ipc'], detached: true, env })
  child.stdout?.on('data', (chunk) => process.stdout.write(chunk))
  const exited = new Promise<string>((resolve) => {
    const end = (reason: string) => void (settings.release?.() ?? Promise.resolve()).finally(() => resolve(reason))
    child.once('error', (error) => end(error.message))
    child.once('close', (code, name) => {
      settings.onExit?.({ isClean: code === 0 })
      end(name ? `ended by ${name}` : `exit status ${code}`)
    })
  })
  const stop = () => stopChild(child, exited, settings.stopLimitMs)
  const stderr = bufferStream(child.stderr!) // Not null: stdio asks for a pipe.
  try {
    refuseOtherMessages(child, settings)
    const ready = waitUntilReady(child, settings, exited, stderr, signal)
    await Promise.all([ready, child.pid && settings.onSpawn(child.pid)])
    return {
      ...(await ready),
      exited,
      stop,
      request: <Reply extends TSchema>(message: object, reply: Reply) =>
        sendRequest(child, settings.name, message, reply, exited),
    }
  } catch (error) {
    await stop()
    throw error
  } finally {
    stderr.release()
  }
}

/** A message of another form ends the child. */
function refuseOtherMessages(child: ChildProcess, { name, ready, replies = [] }: ChildSettings): void {
  const known = [Progress, Failed, ready, ...replies]
  child.on('message', (message: unknown) => {
    if (known.some((schema) => Value.Check(schema, message))) return
    print(`${name} sent a message that it should not send, and is ended`)
    child.kill('SIGKILL')
  })
}

async function waitUntilReady<Ready extends TSchema>(
  child: ChildProcess,
  { name, ready, startLimitMs, onProgress = () => {} }: ChildSettings<Ready>,
  exited: Promise<string>,
  stderr: { take(): string },
  signal: AbortSignal,
): Promise<Static<Ready> & object> {
  const limit = AbortSignal.any([signal, AbortSignal.timeout(startLimitMs)])
  const { promise, resolve, reject } = Promise.withResolvers<Static<Ready> & object>()
  child.on('message', (message: unknown) => {
    if (Value.Check(Progress, message)) onProgress(message.progress)
    else if (Value.Check(ready, message)) resolve(message as Static<Ready> & object)
    else if (Value.Check(Failed, message)) reject(new Error(`${name} did not start: ${message.failed}`))
  })
  void exited.then((reason) => reject(new Error(`${name} did not start (${reason})\n${stderr.take()}`.trim())))
  limit.addEventListener('abort', () =>
    reject(signal.aborted ? signal.reason : new Error(`${name} did not start within ${startLimitMs / 1000} s`)),
  )
  return promise
}

async function sendRequest<Reply extends TSchema>(
  child: ChildProcess,
  name: string,
  message: object,
  schema: Reply,
  exited: Promise<string>,
): Promise<Static<Reply>> {
  const { promise, resolve, reject } = Promise.withResolvers<Static<Reply>>()
  const onMessage = (reply: unknown) => {
    if (Value.Check(schema, reply)) resolve(reply)
  }
  const timer = setTimeout(() => reject(new Error(`${name} did not reply within ${REPLY_LIMIT_MS} ms`)), REPLY_LIMIT_MS)
  void exited.then((reason) => reject(new Error(`${name} ended before it replied (${reason})`)))
  child.on('message', onMessage)
  try {
    child.send(message, (error) => error && reject(error))
    return await promise
  } finally {
    clearTimeout(timer)
    child.off('message', onMessage)
  }
}

/** Buffers a stream until `release`, which writes the rest of the buffer and all later output to our stderr. */
function bufferStream(stream: Readable): { take(): string; release(): void } {
  let buffered = ''
  const append = (chunk: string) => {
    buffered += chunk
  }
  stream.setEncoding('utf8').on('data', append)
  return {
    take() {
      const text = buffered
      buffered = ''
      return text
    },
    release() {
      stream.off('data', append)
      stream.on('data', (chunk) => process.stderr.write(chunk))
      setImmediate(() => process.stderr.write(buffered))
    },
  }
}

async function stopChild(child: ChildProcess, exited: Promise<string>, limitMs: number): Promise<void> {
  if (child.exitCode === null && child.signalCode === null) child.kill('SIGTERM')
  const timer = setTimeout(() => child.kill('SIGKILL'), limitMs)
  await exited
  clearTimeout(timer)
}
