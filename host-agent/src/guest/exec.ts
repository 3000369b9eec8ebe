/** A command in a guest on the host agent's own behalf: short, its output thrown away. */
import type { ClientHttp2Session } from 'node:http2'
import { createGuestExecReader, type GuestExecCommand, GuestExecExit, guestExecFrame } from '@warren/protocol'
import { Value } from 'typebox/value'
import { openGuestStream } from './channel.ts'
import { GuestError } from './client.ts'

/** The exit code; a command that could not start or died by a signal is an error. */
export async function runInGuest(
  session: ClientHttp2Session,
  command: GuestExecCommand,
  signal: AbortSignal,
): Promise<number> {
  const stream = openGuestStream(session, { ':method': 'POST', ':path': '/exec' }, { signal })
  stream.end(guestExecFrame('command', Buffer.from(JSON.stringify(command))))
  const reader = createGuestExecReader()
  for await (const chunk of stream) {
    for (const { type, payload } of reader.push(chunk as Buffer)) {
      const text = type === 'exit' || type === 'error' ? Buffer.from(payload).toString('utf8') : ''
      if (type === 'error') throw new GuestError(`${command.cmd} did not start in the guest: ${text}`)
      if (type === 'exit') return exitCodeOf(JSON.parse(text), command)
    }
  }
  throw new GuestError(`${command.cmd} was cut in the guest`)
}

function exitCodeOf(exit: unknown, command: GuestExecCommand): number {
  if (!Value.Check(GuestExecExit, exit) || exit.code === undefined) {
    throw new GuestError(`${command.cmd} did not end by itself in the guest`)
  }
  return exit.code
}
