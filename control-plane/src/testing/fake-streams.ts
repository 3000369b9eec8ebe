/**
 * The shell and the ports of a fake guest. The shell echoes its input and prints size changes. Ports are those of this
 * machine, so that a test can listen on any of them.
 */
import type { ServerHttp2Stream } from 'node:http2'
import net from 'node:net'
import { respondJson } from '@warren/kit/host-router'
import { ShellFrameDecoder } from '@warren/protocol'

export async function serveShell(stream: ServerHttp2Stream): Promise<void> {
  const decoder = new ShellFrameDecoder()
  stream.respond({ ':status': 200 })
  stream.write('$ ')
  try {
    for await (const chunk of stream.iterator({ destroyOnReturn: false }) as AsyncIterable<Buffer>) {
      for (const frame of decoder.push(chunk)) {
        if (frame.type === 'resize') stream.write(`[${frame.rows}x${frame.cols}]`)
        else if (Buffer.from(frame.data).toString() === 'exit') return void stream.end('bye')
        else stream.write(frame.data)
      }
    }
    stream.end('^D')
  } catch {
    stream.destroy(new Error('reset'))
  }
}

export function serveTunnel(url: URL, stream: ServerHttp2Stream): void {
  const socket = net.connect({ port: Number(url.searchParams.get('port')), host: '127.0.0.1', allowHalfOpen: true })
  socket.once('error', () => {
    if (!stream.headersSent) respondJson(stream, 502, { code: 'connect_refused', message: 'refused' })
  })
  socket.once('connect', () => {
    stream.respond({ ':status': 200 })
    stream.pipe(socket, { end: false })
    stream.once('end', () => !stream.aborted && socket.end())
    socket.pipe(stream, { end: false })
    socket.once('end', () => stream.end())
    stream.once('close', () => (stream.rstCode === 0 ? socket.destroySoon() : socket.resetAndDestroy()))
    // Destroyed with an error: a plain close may send the end of the body first.
    socket.on('error', () => stream.destroy(new Error('reset')))
  })
}
