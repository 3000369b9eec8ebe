/**
 * A client of QEMU's monitor (QMP: one JSON object per line). The monitor serves one client at a time and outlives each of
 * them; a client that died in the middle of a line does not affect the next one. The connection ends when QEMU exits,
 * which is how an exit is noticed.
 */
import { once } from 'node:events'
import net from 'node:net'
import { setTimeout as delay } from 'node:timers/promises'

type Reply = { resolve: (value: unknown) => void; reject: (error: Error) => void }
/** Most commands take well under a millisecond; saving the device state takes a few. */
const REPLY_LIMIT_MS = 20_000
const LINE_MAX_CHARACTERS = 4 * 1024 * 1024

export class Qmp {
  readonly #socket: net.Socket
  readonly #replies = new Map<number, Reply>()
  #buffered = ''
  #next = 1
  /** Called with the name of each asynchronous event. */
  onEvent: (event: string) => void = () => {}
  /** Settles when the connection ends: QEMU exited, or `close` was called. */
  readonly closed: Promise<void>

  private constructor(socket: net.Socket) {
    this.#socket = socket
    this.closed = new Promise((resolve) => socket.once('close', () => resolve()))
    socket.setEncoding('utf8')
    socket.on('data', (text: string) => this.#read(text))
    socket.on('error', () => {}) // `closed` settles.
    void this.closed.then(() => this.#failAll(new Error('the connection to QEMU ended')))
  }

  /** Waits for the socket to appear and completes the capabilities negotiation. */
  static async connect(path: string, signal: AbortSignal): Promise<Qmp> {
    const socket = await connectWhenThere(path, signal)
    const qmp = new Qmp(socket)
    const stop = () => socket.destroy()
    signal.addEventListener('abort', stop, { once: true })
    try {
      // An earlier client may still be connected. The command waits in the socket until that one disconnects.
      await qmp.run('qmp_capabilities')
      return qmp
    } catch (error) {
      socket.destroy()
      throw error
    } finally {
      signal.removeEventListener('abort', stop)
    }
  }

  async run<Result = unknown>(command: string, args?: object, limitMs = REPLY_LIMIT_MS): Promise<Result> {
    const id = this.#next++
    const { promise, resolve, reject } = Promise.withResolvers<unknown>()
    this.#replies.set(id, { resolve, reject })
    const timer = setTimeout(() => reject(new Error(`QEMU did not answer ${command} within ${limitMs} ms`)), limitMs)
    try {
      if (this.#socket.destroyed) throw new Error('the connection to QEMU ended')
      this.#socket.write(`${JSON.stringify({ execute: command, ...(args ? { arguments: args } : {}), id })}\n`)
      return (await promise) as Result
    } finally {
      clearTimeout(timer)
      this.#replies.delete(id)
    }
  }

  close(): void {
    this.#socket.destroy()
  }

  /** Fails the commands under way when the signal is aborted, until the returned function is called. */
  closeOnAbort(signal: AbortSignal): () => void {
    const close = () => this.close()
    if (signal.aborted) close()
    signal.addEventListener('abort', close, { once: true })
    return () => signal.removeEventListener('abort', close)
  }

  #read(text: string): void {
    const lines = (this.#buffered + text).split('\n')
    this.#buffered = lines.pop() ?? ''
    if (this.#buffered.length > LINE_MAX_CHARACTERS) return void this.#socket.destroy()
    for (const line of lines) if (line.trim() !== '') this.#handle(line)
  }

  #handle(line: string): void {
    let message: { id?: number; event?: string; return?: unknown; error?: { desc?: string } }
    try {
      message = JSON.parse(line)
    } catch {
      return void this.#socket.destroy() // Not a QMP monitor.
    }
    if (message.event !== undefined) this.onEvent(message.event)
    const reply = message.id === undefined ? undefined : this.#replies.get(message.id)
    if (!reply) return // A greeting, an event, or the reply to an earlier client's command.
    if (message.error) reply.reject(new Error(`QEMU: ${message.error.desc ?? 'error'}`))
    else reply.resolve(message.return)
  }

  #failAll(error: Error): void {
    for (const reply of this.#replies.values()) reply.reject(error)
  }
}

/** QEMU creates its sockets about 30 ms after it was started. */
export async function connectWhenThere(path: string, signal: AbortSignal): Promise<net.Socket> {
  for (;;) {
    signal.throwIfAborted()
    const socket = net.connect(path)
    try {
      await once(socket, 'connect', { signal })
      return socket
    } catch (error) {
      socket.destroy()
      signal.throwIfAborted()
      const code = (error as NodeJS.ErrnoException).code
      if (code !== 'ENOENT' && code !== 'ECONNREFUSED') throw error
      await delay(1)
    }
  }
}
