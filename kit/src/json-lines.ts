/**
 * Messages between the host agent, or the launcher, and a process that it does not trust: JSON, one message per line, over a socket.
 *
 * Node's own channel (`fork`) is for processes that are trusted. It throws, in the process that reads, when a line is not JSON or
 * has one of Node's internal forms, and it reads lines of any length into memory.
 */
import type { Duplex } from 'node:stream'

export type JsonLines = {
  /** Does nothing when the other side is gone. */
  send: (message: object) => void
  /** The other side sees the end of the stream. */
  end: () => void
}

export type JsonLinesSettings = {
  /** Of one line; more is a violation. */
  maxBytes: number
  /** What it throws is a violation too. */
  onMessage: (message: unknown) => void
  /** The other side sent what no message can be. Nothing more is read. */
  onViolation: (error: Error) => void
  /** The stream ended or failed. */
  onClose: () => void
}

const NEWLINE = 0x0a

export function openJsonLines(stream: Duplex, settings: JsonLinesSettings): JsonLines {
  const { maxBytes, onMessage, onViolation, onClose } = settings
  let parts: Buffer[] = []
  let bytes = 0
  let isBroken = false

  const add = (part: Buffer): void => {
    bytes += part.length
    if (bytes > maxBytes) throw new Error(`a message is longer than ${maxBytes} bytes`)
    if (part.length > 0) parts.push(part)
  }
  const takeLine = (): string => {
    const line = Buffer.concat(parts).toString()
    parts = []
    bytes = 0
    return line
  }
  stream.on('data', (chunk: Buffer) => {
    if (isBroken) return
    try {
      for (let from = 0; from < chunk.length; ) {
        const end = chunk.indexOf(NEWLINE, from)
        add(chunk.subarray(from, end < 0 ? chunk.length : end))
        if (end < 0) break
        onMessage(JSON.parse(takeLine()))
        from = end + 1
      }
    } catch (error) {
      isBroken = true
      stream.destroy()
      onViolation(error as Error)
    }
  })
  stream.on('error', () => {}) // 'close' follows.
  stream.on('end', onClose)
  stream.on('close', onClose)
  return {
    send: (message) => {
      if (stream.writable) stream.write(`${JSON.stringify(message)}\n`)
    },
    end: () => void stream.end(),
  }
}
