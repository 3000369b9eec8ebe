/**
 * A part as a child: in a session of its own, so that Ctrl-C reaches only us and the order of stopping is ours; with a
 * channel that closes when we die, upon which it stops by itself.
 *
 * Its log goes where ours goes. What it says outside the log (a setting it cannot use, a crash of Node itself) is held
 * back while it starts, to be told after the line that people are waiting on.
 */
import { type ChildProcess, spawn } from 'node:child_process'
import type { Readable } from 'node:stream'

type Message<Ready> = (Ready & { ready: true }) | { failed: string } | { progress: string }

export type Child<Ready> = Ready & { exited: Promise<string>; stop(): Promise<void> }

export type ChildSettings = {
  /** As people are told: "the control plane". */
  name: string
  command: string
  args: string[]
  env: NodeJS.ProcessEnv
  startLimitMs: number
  stopLimitMs: number
  /** Told as soon as there is a process, long before it is ready. */
  spawned: (pid: number) => Promise<void>
  progress?: (text: string) => void
}

export async function startChild<Ready extends object>(
  settings: ChildSettings,
  signal: AbortSignal,
): Promise<Child<Ready>> {
  const { command, args, env } = settings
  const child = spawn(command, args, { stdio: ['ignore', 'inherit', 'pipe', 'ipc'], detached: true, env })
  const exited = new Promise<string>((resolve) => {
    child.once('error', (error) => resolve(error.message))
    child.once('close', (code, name) => resolve(name ? `ended by ${name}` : `exit status ${code}`))
  })
  const stop = () => stopChild(child, exited, settings.stopLimitMs)
  const complaints = hold(child.stderr!) // A pipe, as asked for above.
  try {
    const ready = untilReady<Ready>(child, settings, exited, complaints, signal)
    await Promise.all([ready, child.pid && settings.spawned(child.pid)])
    return { ...(await ready), exited, stop }
  } catch (error) {
    await stop()
    throw error
  } finally {
    complaints.release()
  }
}

async function untilReady<Ready extends object>(
  child: ChildProcess,
  { name, startLimitMs, progress = () => {} }: ChildSettings,
  exited: Promise<string>,
  complaints: { text(): string },
  signal: AbortSignal,
): Promise<Ready> {
  const limit = AbortSignal.any([signal, AbortSignal.timeout(startLimitMs)])
  const { promise, resolve, reject } = Promise.withResolvers<Ready>()
  child.on('message', (message: Message<Ready>) => {
    if ('progress' in message) progress(message.progress)
    else if ('failed' in message) reject(new Error(`${name} did not start: ${message.failed}`))
    else resolve(message)
  })
  void exited.then((how) => reject(new Error(`${name} did not start (${how})\n${complaints.text()}`.trim())))
  limit.addEventListener('abort', () =>
    reject(signal.aborted ? signal.reason : new Error(`${name} did not start within ${startLimitMs / 1000} s`)),
  )
  return promise
}

/** Keeps what comes until it is released; what was neither taken nor passed on by then is passed on. */
function hold(stream: Readable): { text(): string; release(): void } {
  let held = ''
  const keep = (chunk: string) => {
    held += chunk
  }
  stream.setEncoding('utf8').on('data', keep)
  return {
    text() {
      const text = held
      held = ''
      return text
    },
    release() {
      stream.off('data', keep)
      stream.on('data', (chunk) => process.stderr.write(chunk))
      setImmediate(() => process.stderr.write(held))
    },
  }
}

async function stopChild(child: ChildProcess, exited: Promise<string>, limitMs: number): Promise<void> {
  if (child.exitCode === null && child.signalCode === null) child.kill('SIGTERM')
  const timer = setTimeout(() => child.kill('SIGKILL'), limitMs)
  await exited
  clearTimeout(timer)
}
