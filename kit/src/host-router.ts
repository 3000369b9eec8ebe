/**
 * The router of the host API (HOST_ROUTES in protocol): finds the route of an HTTP/2 stream, parses its query and body,
 * calls the handler and sends what it returns as JSON. The host agent and the fake host of the control plane's tests
 * both use it, so they accept exactly the same requests. A request with `traceparent` becomes a span of the caller's trace.
 */
import type { IncomingHttpHeaders, ServerHttp2Stream } from 'node:http2'
import {
  createRouteMatcher,
  HOST_FAILURE_STATUS,
  HOST_ROUTES,
  type HostFailure,
  type HostFailureCode,
  type HostRoute,
  type HostRouteName,
} from '@warren/protocol'
import type { Static, TObject, TSchema } from 'typebox'
import { Value } from 'typebox/value'
import { matches } from './matches.ts'
import { continueTrace } from './span.ts'

const BODY_MAX_BYTES = 1024 * 1024

type Routes = typeof HOST_ROUTES
/** The names after `:` in a path pattern, and `*`. */
type ParamNames<Path extends string> = Path extends `${infer First}/${infer Rest}`
  ? ParamNames<First> | ParamNames<Rest>
  : Path extends `:${infer Name}`
    ? Name
    : Path extends '*'
      ? '*'
      : never
type Parsed<Route, Part extends string> =
  Route extends Record<Part, infer Schema extends TSchema> ? Static<Schema> : undefined

export type HostRequest<Name extends HostRouteName> = {
  method: string
  params: Record<ParamNames<Routes[Name]['path']>, string>
  /** The query with its leading `?`, or an empty string. */
  search: string
  query: Parsed<Routes[Name], 'query'>
  body: Parsed<Routes[Name], 'body'>
  stream: ServerHttp2Stream
}
/** A handler of a route without a response schema responds on the stream itself. */
export type HostHandlers = {
  [Name in HostRouteName]: Routes[Name] extends { response: infer Schema extends TSchema }
    ? (request: HostRequest<Name>) => Promise<Static<Schema>> | Static<Schema>
    : (request: HostRequest<Name>) => Promise<void>
}

/** The request matches no route, or its query or body is not valid. */
export class HostRequestError extends Error {
  override name = 'HostRequestError'
  readonly code: 'not_found' | 'invalid'

  constructor(code: 'not_found' | 'invalid', message: string) {
    super(message)
    this.code = code
  }
}

const match = createRouteMatcher<HostRouteName>(HOST_ROUTES)

/** Serves one stream. Rejects with what the handler throws, or with HostRequestError. */
export function createHostRouter(handlers: HostHandlers) {
  return async (stream: ServerHttp2Stream, headers: IncomingHttpHeaders): Promise<void> => {
    const method = headers[':method'] ?? ''
    const { pathname, search, searchParams } = new URL(headers[':path'] ?? '/', 'http://host')
    const found = match(method, pathname)
    if (!found) throw new HostRequestError('not_found', `no route ${method} ${pathname}`)
    const route: HostRoute = HOST_ROUTES[found.name]
    const request = {
      method,
      params: found.params,
      search,
      query: route.query && parseQuery(route.query, searchParams),
      body: route.body && check(route.body, await readJson(stream, route.bodyMaxBytes ?? BODY_MAX_BYTES)),
      stream,
    }
    // TypeScript cannot relate the types of the request and of the handler by a name that is a union.
    const handle = handlers[found.name] as (request: object) => Promise<object> | object
    const operation = {
      name: found.name,
      sandbox: found.params.id ?? (request.body as { id?: string } | undefined)?.id,
    }
    const response = await continueTrace(findTraceparent(headers), operation, async () => handle(request))
    if (route.response) respondJson(stream, 200, response)
  }
}

const findTraceparent = ({ traceparent }: IncomingHttpHeaders): string | undefined =>
  typeof traceparent === 'string' ? traceparent : undefined

export function respondJson(stream: ServerHttp2Stream, status: number, body: unknown): void {
  if (stream.destroyed || stream.headersSent) return
  stream.respond({ ':status': status, 'content-type': 'application/json' })
  stream.end(JSON.stringify(body))
}

export function respondFailure(stream: ServerHttp2Stream, code: HostFailureCode, message: string): void {
  respondJson(stream, HOST_FAILURE_STATUS[code], { code, message } satisfies HostFailure)
}

const PORT_MAX = 65_535

/** The `:port` of a path. */
export function parsePort(text: string): number {
  const port = /^\d{1,5}$/.test(text) ? Number(text) : 0
  if (port < 1 || port > PORT_MAX) throw new HostRequestError('invalid', `${text} is not a port`)
  return port
}

/** Numbers are the only query parameters that are not strings. */
function parseQuery(schema: TObject, params: URLSearchParams): object {
  const query: Record<string, unknown> = {}
  for (const [name, property] of Object.entries(schema.properties)) {
    const text = params.get(name)
    if (text !== null) query[name] = 'type' in property && property.type === 'integer' ? Number(text) : text
  }
  return check(schema, query)
}

function check<Schema extends TObject>(schema: Schema, value: unknown): object {
  if (matches(schema, value)) return value as object
  const [fault] = Value.Errors(schema, value)
  throw new HostRequestError('invalid', `${fault?.instancePath ?? ''} ${fault?.message ?? 'is not valid'}`.trim())
}

async function readJson(stream: ServerHttp2Stream, maxBytes: number): Promise<unknown> {
  const chunks: Buffer[] = []
  let bytes = 0
  for await (const chunk of stream) {
    bytes += (chunk as Buffer).length
    if (bytes > maxBytes) throw new HostRequestError('invalid', `the body exceeds ${maxBytes} bytes`)
    chunks.push(chunk as Buffer)
  }
  try {
    return JSON.parse(Buffer.concat(chunks).toString('utf8'))
  } catch {
    throw new HostRequestError('invalid', 'the body is not JSON')
  }
}
