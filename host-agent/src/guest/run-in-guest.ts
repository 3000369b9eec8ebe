/** Runs a short command in a guest for the host agent itself. Its output is discarded. */
import type { ClientHttp2Session } from 'node:http2'
import { matches } from '@warren/kit/matches'
import { createGuestExecReader, type GuestExecCommand, GuestExecExit, guestExecFrame } from '@warren/protocol'
import { GuestError } from './call-guest.ts'
import { openGuestStream } from './channel.ts'

/** Returns the exit code. Throws if the command could not start or was ended by a signal. */
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
      if (type === 'error') throw new GuestError(`${command.cmd} failed to start in the guest: ${text}`)
      if (type === 'exit') return exitCodeOf(JSON.parse(text), command)
    }
  }
  throw new GuestError(`the guest closed the stream before ${command.cmd} exited`)
}

function exitCodeOf(exit: unknown, command: GuestExecCommand): number {
  if (!matches(GuestExecExit, exit) || exit.code === undefined) {
    throw new GuestError(`${command.cmd} did not exit normally in the guest`)
  }
  return exit.code
}
