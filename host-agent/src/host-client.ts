/** Requests of command-line programs to the host agent that runs on this machine, by its socket. */
import { once } from 'node:events'
import http2 from 'node:http2'
import net from 'node:net'
import { warrenCommand } from '@warren/kit/warren-command'
import { HOST_ROUTES, HostFailure, type HostRouteName } from '@warren/protocol'
import type { Static, TObject } from 'typebox'
import { Value } from 'typebox/value'
import type { Config } from './config.ts'

type JsonRoute = {
  [N in HostRouteName]: (typeof HOST_ROUTES)[N] extends { response: TObject } ? N : never
}[HostRouteName]
type ResponseOf<N extends JsonRoute> = (typeof HOST_ROUTES)[N] extends { response: infer S extends TObject }
  ? Static<S>
  : never

export function isListening(socket: string): Promise<boolean> {
  return new Promise((resolve) => {
    const connection = net.connect(socket)
    connection.once('connect', () => resolve(true)).once('error', () => resolve(false))
    connection.once('connect', () => connection.destroy())
  })
}

/** Throws what the host agent says, or that Warren is not running. Only for routes without parameters in their path. */
export async function callHost<N extends JsonRoute>(
  { socket, dataDir }: Pick<Config, 'socket' | 'dataDir'>,
  name: N,
  body?: object,
  signal?: AbortSignal,
): Promise<ResponseOf<N>> {
  const route = HOST_ROUTES[name]
  const connection = net.connect(socket)
  await once(connection, 'connect', signal && { signal }).catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'EACCES') throw new Error(`no access to ${socket}; run this as root`)
    if (error.code !== 'ENOENT' && error.code !== 'ECONNREFUSED') throw error
    throw new Error(`Warren is not running on ${dataDir}; start it with ${warrenCommand()} start`)
  })
  const session = http2.connect('http://host', { createConnection: () => connection })
  session.on('error', () => {}) // The stream gets it too.
  try {
    const headers = { ':method': route.method, ':path': route.path }
    const stream = session.request(headers, { endStream: body === undefined, ...(signal && { signal }) })
    if (body !== undefined) stream.end(JSON.stringify(body))
    const chunks: Buffer[] = []
    for await (const chunk of stream) chunks.push(chunk as Buffer)
    const text = Buffer.concat(chunks).toString('utf8')
    if (text === '') throw new Error('the host agent stopped before it responded')
    return parse(route.response, JSON.parse(text)) as ResponseOf<N>
  } finally {
    session.destroy()
  }
}

function parse(schema: TObject, value: unknown): unknown {
  if (Value.Check(HostFailure, value)) throw new Error(value.message)
  if (!Value.Check(schema, value)) throw new Error('the host agent is of another version; start Warren again')
  return value
}
