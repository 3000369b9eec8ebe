/**
 * The channel of a service to the process that has started it, over which it reports that it is ready. It closes when
 * that process ends.
 *
 * The launcher runs as root and does not trust a service in a jail: their channel is a socket with JSON lines
 * (json-lines.ts). Otherwise it is Node's own channel (`fork`).
 */
import { Socket } from 'node:net'
import { openJsonLines } from './json-lines.ts'

/** Names the descriptor of the socket, which is not one of Node's. */
export const CHANNEL_VARIABLE = 'WARREN_CHANNEL_FD'
/** The first one after stderr. */
export const CHANNEL_FD = 3

export type ParentChannel = {
  /** Does nothing when the other side is gone. */
  send(message: object): void
  onMessage(listener: (message: unknown) => void): void
}

/** Returns undefined if the process was started without a channel. To be called once. `onClose`: the parent has ended. */
export function openParentChannel(onClose: () => void): ParentChannel | undefined {
  const fd = process.env[CHANNEL_VARIABLE]
  if (fd === undefined) return openNodeChannel(onClose)
  // Not for the processes that this one starts.
  delete process.env[CHANNEL_VARIABLE]
  const listeners: ((message: unknown) => void)[] = []
  const lines = openJsonLines(new Socket({ fd: Number(fd) }), {
    maxBytes: Number.POSITIVE_INFINITY, // The launcher is trusted.
    onMessage: (message) => {
      for (const listener of listeners) listener(message)
    },
    onViolation: onClose,
    onClose,
  })
  return { send: lines.send, onMessage: (listener) => void listeners.push(listener) }
}

function openNodeChannel(onClose: () => void): ParentChannel | undefined {
  if (process.send === undefined) return undefined
  process.on('disconnect', onClose)
  return {
    send: (message) => void (process.connected && process.send?.(message, undefined, undefined, () => {})),
    onMessage: (listener) => void process.on('message', listener),
  }
}
