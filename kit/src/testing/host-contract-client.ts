/**
 * A client of the host API for the contract suite. Unlike the control plane's client it shows statuses, and it fails on any
 * response that does not match what protocol/src/host-api.ts declares.
 */
import assert from 'node:assert/strict'
import { once } from 'node:events'
import { type ClientHttp2Session, type ClientHttp2Stream, connect } from 'node:http2'
import net from 'node:net'
import {
  createGuestExecReader,
  type GuestExecCommand,
  guestExecFrame,
  HOST_FAILURE_STATUS,
  HOST_ROUTES,
  HostFailure,
  type HostRoute,
  type HostRouteName,
  type HostState,
  type HostVm,
} from '@warren/protocol'
import { Value } from 'typebox/value'
import { scaleLimit } from './slowness.ts'

/** Creates and resumes have a limit too. This one is for a host that hangs. */
const RESPONSE_LIMIT_MS = scaleLimit(150_000)

export type HostResponse = {
  status: number
  // biome-ignore lint/suspicious/noExplicitAny: tests assert on the response itself, whose schema was checked.
  body: any
}
export type GuestExecResult = { stdout: string; stderr: string; exit?: { code?: number }; error?: { kind: string } }
type JsonRoute = { [Name in HostRouteName]: (typeof HOST_ROUTES)[Name] extends { response: object } ? Name : never }

export class HostContractClient {
  readonly #session: ClientHttp2Session

  constructor(socket: string) {
    this.#session = connect('http://host', { createConnection: () => net.connect(socket) })
    this.#session.on('error', () => {}) // Every stream gets the error too.
  }

  close(): void {
    this.#session.destroy()
  }

  /** Calls a route that responds with JSON. The response matches its schema, or is a failure with the status of its code. */
  async call(name: JsonRoute[HostRouteName], params: { id?: string } = {}, body?: object): Promise<HostResponse> {
    const route: HostRoute = HOST_ROUTES[name]
    let path = route.path.replace(':id', params.id ?? '')
    if (route.query && body) path += `?${new URLSearchParams(body as Record<string, string>)}`
    const response = await this.request(route.method, path, route.query ? undefined : body && JSON.stringify(body))
    if (response.status === 200) {
      assert.ok(Value.Check(route.response!, response.body), `${name}: ${JSON.stringify(response.body)}`)
    } else checkFailure(name, response)
    return response
  }

  async request(method: string, path: string, body?: string | Buffer): Promise<HostResponse> {
    const stream = this.open(method, path, body === undefined)
    if (body !== undefined) stream.end(body)
    const { status, bytes } = await readResponse(stream)
    return { status, body: parse(bytes) }
  }

  open(method: string, path: string, endStream = false): ClientHttp2Stream {
    const stream = this.#session.request({ ':method': method, ':path': path }, { endStream })
    stream.setTimeout(RESPONSE_LIMIT_MS, () => stream.destroy(new Error(`${method} ${path}: no response in time`)))
    return stream
  }

  /** The code of a failure, or the status of a success. */
  async codeOf(name: JsonRoute[HostRouteName], params: { id?: string }, body?: object): Promise<string | number> {
    const response = await this.call(name, params, body)
    return response.status === 200 ? 200 : response.body.code
  }

  async findVm(id: string): Promise<HostVm | undefined> {
    const { body } = (await this.call('getHost')) as { body: HostState }
    return body.vms.find((vm) => vm.id === id)
  }

  /** A request to the guest whose response is a body of bytes, or JSON. */
  async guest(id: string, method: string, path: string, body?: string): Promise<{ status: number; bytes: Buffer }> {
    const stream = this.open(method, `/v1/vms/${id}/guest/${path}`, body === undefined)
    if (body !== undefined) stream.end(body)
    return readResponse(stream)
  }

  async exec(id: string, command: GuestExecCommand): Promise<GuestExecResult> {
    const { stream, frames } = this.openExec(id, command)
    const result: GuestExecResult = { stdout: '', stderr: '' }
    for await (const { type, payload } of frames) {
      const text = Buffer.from(payload).toString()
      if (type === 'stdout' || type === 'stderr') result[type] += text
      if (type === 'exit' || type === 'error') result[type] = JSON.parse(text)
    }
    assert.equal(stream.rstCode, 0)
    return result
  }

  openExec(id: string, command: GuestExecCommand) {
    const stream = this.open('POST', `/v1/vms/${id}/guest/exec`)
    stream.end(guestExecFrame('command', Buffer.from(JSON.stringify(command))))
    return { stream, frames: readFrames(stream) }
  }
}

export function checkFailure(what: string, { status, body }: HostResponse): void {
  assert.ok(Value.Check(HostFailure, body), `${what}: ${status} ${JSON.stringify(body)}`)
  assert.equal(status, HOST_FAILURE_STATUS[body.code as keyof typeof HOST_FAILURE_STATUS], what)
}

async function* readFrames(stream: ClientHttp2Stream) {
  const [headers] = await once(stream, 'response')
  assert.equal(headers[':status'], 200)
  const reader = createGuestExecReader()
  for await (const chunk of stream as AsyncIterable<Buffer>) yield* reader.push(chunk)
  reader.end()
}

async function readResponse(stream: ClientHttp2Stream): Promise<{ status: number; bytes: Buffer }> {
  const [headers] = await once(stream, 'response')
  const chunks: Buffer[] = []
  for await (const chunk of stream as AsyncIterable<Buffer>) chunks.push(chunk)
  return { status: headers[':status'], bytes: Buffer.concat(chunks) }
}

function parse(bytes: Buffer): unknown {
  try {
    return JSON.parse(bytes.toString())
  } catch {
    return bytes.toString()
  }
}
