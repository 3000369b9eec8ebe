/**
 * Connects a stream of the control plane with a TCP port of a sandbox. Back-pressure passes through, each direction
 * ends separately, and a reset on either side resets the other.
 */
import http2, { type ServerHttp2Stream } from 'node:http2'
import type { Vms } from '../vms/vms.ts'

export async function relayToPort(vms: Vms, caller: ServerHttp2Stream, id: string, port: number): Promise<void> {
  const callerDisconnected = new AbortController()
  caller.once('close', () => callerDisconnected.abort(new Error('the caller disconnected')))
  const socket = await vms.connect(id, port, callerDisconnected.signal)
  if (caller.destroyed) return void socket.destroy()
  caller.respond({ ':status': 200, 'content-type': 'application/octet-stream' })

  caller.pipe(socket, { end: false })
  caller.once('end', () => {
    if (!caller.aborted && caller.rstCode === http2.constants.NGHTTP2_NO_ERROR) socket.end()
  })
  caller.once('close', () => {
    if (!socket.destroyed && !socket.writableEnded) socket.resetAndDestroy()
    else socket.destroySoon()
  })
  socket.pipe(caller, { end: false })
  socket.once('end', () => caller.end())
  socket.once('close', () => {
    if (!socket.readableEnded && !caller.destroyed) caller.destroy(new Error('the guest reset the connection'))
    else if (!caller.readableEnded && !caller.destroyed) caller.close(http2.constants.NGHTTP2_NO_ERROR)
  })
}
