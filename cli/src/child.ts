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

type Message<Ready> = (Ready & { ready: true }) | { failed: string } | { progress: string }

export type Child<Ready> = Ready & {
  exited: Promise<string>
  stop(): Promise<void>
  /** Sends a message and waits for the one that `isReply` accepts. */
  request<Reply extends object>(message: object, isReply: (reply: object) => reply is Reply): Promise<Reply>
}

/** A reply takes milliseconds; a busy machine may need seconds. */
const REPLY_LIMIT_MS = 20_000

export type ChildSettings = {
  /** As messages name it: "the control plane". */
  name: string
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
}

export async function startChild<Ready extends object>(
  settings: ChildSettings,
  signal: AbortSignal,
): Promise<Child<Ready>> {
  const { command, args, env } = settings
  const child = spawn(command, args, { stdio: ['ignore', 'inherit', 'pipe', 'ipc'], detached: true, env })
  const exited = new Promise<string>((resolve) => {
    child.once('error', (error) => resolve(error.message))
    child.once('close', (code, name) => {
      settings.onExit?.({ isClean: code === 0 })
      resolve(name ? `ended by ${name}` : `exit status ${code}`)
    })
  })
  const stop = () => stopChild(child, exited, settings.stopLimitMs)
  const stderr = bufferStream(child.stderr!) // Not null: stdio asks for a pipe.
  try {
    const ready = waitUntilReady<Ready>(child, settings, exited, stderr, signal)
    await Promise.all([ready, child.pid && settings.onSpawn(child.pid)])
    return {
      ...(await ready),
      exited,
      stop,
      request: (message, isReply) => sendRequest(child, settings.name, message, isReply, exited),
    }
  } catch (error) {
    await stop()
    throw error
  } finally {
    stderr.release()
  }
}

async function waitUntilReady<Ready extends object>(
  child: ChildProcess,
  { name, startLimitMs, onProgress = () => {} }: ChildSettings,
  exited: Promise<string>,
  stderr: { take(): string },
  signal: AbortSignal,
): Promise<Ready> {
  const limit = AbortSignal.any([signal, AbortSignal.timeout(startLimitMs)])
  const { promise, resolve, reject } = Promise.withResolvers<Ready>()
  child.on('message', (message: Message<Ready>) => {
    if ('progress' in message) onProgress(message.progress)
    else if ('ready' in message) resolve(message)
    else if ('failed' in message) reject(new Error(`${name} did not start: ${message.failed}`))
  })
  void exited.then((reason) => reject(new Error(`${name} did not start (${reason})\n${stderr.take()}`.trim())))
  limit.addEventListener('abort', () =>
    reject(signal.aborted ? signal.reason : new Error(`${name} did not start within ${startLimitMs / 1000} s`)),
  )
  return promise
}

async function sendRequest<Reply extends object>(
  child: ChildProcess,
  name: string,
  message: object,
  isReply: (reply: object) => reply is Reply,
  exited: Promise<string>,
): Promise<Reply> {
  const { promise, resolve, reject } = Promise.withResolvers<Reply>()
  const onMessage = (reply: object) => {
    if (isReply(reply)) resolve(reply)
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
