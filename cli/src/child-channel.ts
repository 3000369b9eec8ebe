/**
 * The launcher's end of its channel to a service. To one in a jail, which may have been taken over, it is a socket with
 * JSON lines of limited length (kit/src/json-lines.ts): Node's own channel throws, in this process, when a line is not JSON or
 * has one of Node's internal forms. A service that sends what it should not send is ended.
 */
import type { ChildProcess } from 'node:child_process'
import type { Duplex } from 'node:stream'
import { openJsonLines } from '@warren/kit/json-lines'
import { CHANNEL_FD, CHANNEL_VARIABLE } from '@warren/kit/parent-channel'
import { print } from './output.ts'
import { printable } from './service-output.ts'

export type ChildChannel = {
  /** Does nothing when the service is gone. */
  send(message: object): void
  /** Returns a function that removes the listener. */
  onMessage(listener: (message: unknown) => void): () => void
}

/** How a service is to be started, so that it has the channel. */
export const channelEnv = (isConfined: boolean): NodeJS.ProcessEnv =>
  isConfined ? { [CHANNEL_VARIABLE]: `${CHANNEL_FD}` } : {}
export const channelStdio = (isConfined: boolean): 'pipe' | 'ipc' => (isConfined ? 'pipe' : 'ipc')

/** More than the longest text of a message (child-messages.ts), if each of its characters is escaped. */
const MESSAGE_MAX_BYTES = 1_000_000

/** Other messages than those that are `known` end the service. */
export function openChildChannel(
  child: ChildProcess,
  { name, isConfined, isKnown }: { name: string; isConfined: boolean; isKnown: (message: unknown) => boolean },
): ChildChannel {
  const listeners = new Set<(message: unknown) => void>()
  const receive = (message: unknown): void => {
    if (!isKnown(message)) throw new Error('it has another form')
    for (const listener of listeners) listener(message)
  }
  const end = (error: Error): void => {
    print(`${name} sent a message that it should not send, and is ended (${printable(error.message)})`)
    child.kill('SIGKILL')
  }
  const open = isConfined ? openSocket : openNodeChannel
  const send = open(child, receive, end)
  return {
    send,
    onMessage(listener) {
      listeners.add(listener)
      return () => void listeners.delete(listener)
    },
  }
}

type Open = (
  child: ChildProcess,
  receive: (message: unknown) => void,
  onViolation: (error: Error) => void,
) => ChildChannel['send']

const openSocket: Open = (child, onMessage, onViolation) => {
  const socket = child.stdio[CHANNEL_FD] as Duplex // channelStdio asks for it.
  // Its end needs no answer: the service has ended or will not reply in time.
  const settings = { maxBytes: MESSAGE_MAX_BYTES, onMessage, onViolation, onClose: () => {} }
  return openJsonLines(socket, settings).send
}

const openNodeChannel: Open = (child, receive, onViolation) => {
  child.on('message', (message) => {
    try {
      receive(message)
    } catch (error) {
      onViolation(error as Error)
    }
  })
  return (message) => void (child.connected && child.send(message, () => {}))
}
