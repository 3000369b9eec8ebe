/**
 * QEMU's monitor: one JSON object a line. It serves one client at a time and outlives each of them; a client that
 * died in the middle of a line does no harm to the next (platform 11.5). The connection ends when QEMU does, which is
 * how its death is noticed.
 */
import { once } from 'node:events'
import net from 'node:net'
import { setTimeout as delay } from 'node:timers/promises'

type Reply = { resolve: (value: unknown) => void; reject: (error: Error) => void }
/** QEMU answers in well under a millisecond; saving the state of devices takes some. */
const REPLY_LIMIT_MS = 20_000
const LINE_MAX_CHARACTERS = 4 * 1024 * 1024

export class Qmp {
  readonly #socket: net.Socket
  readonly #replies = new Map<number, Reply>()
  #held = ''
  #next = 1
  /** For what QEMU says by itself. */
  onEvent: (event: string) => void = () => {}
  /** Settles when the connection ends: QEMU is gone, or we closed it. */
  readonly closed: Promise<void>

  private constructor(socket: net.Socket) {
    this.#socket = socket
    this.closed = new Promise((resolve) => socket.once('close', () => resolve()))
    socket.setEncoding('utf8')
    socket.on('data', (text: string) => this.#read(text))
    socket.on('error', () => {}) // `closed` says it.
    void this.closed.then(() => this.#failAll(new Error('the connection to QEMU ended')))
  }

  /** Waits for the socket to appear, for QEMU's greeting, and leaves negotiation behind. */
  static async connect(path: string, signal: AbortSignal): Promise<Qmp> {
    const socket = await connectWhenThere(path, signal)
    const qmp = new Qmp(socket)
    const stop = () => socket.destroy()
    signal.addEventListener('abort', stop, { once: true })
    try {
      // Before the greeting a client that came first may still be there: commands wait in the socket until it leaves.
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

  #read(text: string): void {
    const lines = (this.#held + text).split('\n')
    this.#held = lines.pop() ?? ''
    if (this.#held.length > LINE_MAX_CHARACTERS) return void this.#socket.destroy()
    for (const line of lines) if (line.trim() !== '') this.#handle(line)
  }

  #handle(line: string): void {
    let message: { id?: number; event?: string; return?: unknown; error?: { desc?: string } }
    try {
      message = JSON.parse(line)
    } catch {
      return void this.#socket.destroy() // Not a monitor, or one gone mad.
    }
    if (message.event !== undefined) this.onEvent(message.event)
    const reply = message.id === undefined ? undefined : this.#replies.get(message.id)
    if (!reply) return // A greeting, an event, or an answer for somebody before us.
    if (message.error) reply.reject(new Error(`QEMU: ${message.error.desc ?? 'error'}`))
    else reply.resolve(message.return)
  }

  #failAll(error: Error): void {
    for (const reply of this.#replies.values()) reply.reject(error)
  }
}

/** QEMU makes its sockets some 30 ms after it was started. */
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
