/** A client of the sandbox API for rows that need virtual machines. It has one pool of connections and never retries. */
import { Readable } from 'node:stream'
import { setTimeout as delay } from 'node:timers/promises'
import { Pool } from 'undici'
import { Skip } from '../skip.ts'

export type Sandbox = { id: string; status: string }
export type ExecResult = { exit_code: number; stdout: string; stderr: string }
type Json = Record<string, unknown>

/** Generous: an emulated VM on a busy machine is slow. */
const LIMIT_MS = 10 * 60_000
const POLL_MS = 2

export class Api {
  readonly #pool: Pool
  /** For requests that do not use the pool. */
  readonly url: URL
  readonly headers: { 'X-Api-Key': string }

  constructor(baseUrl: string, key: string) {
    this.#pool = new Pool(baseUrl, { connections: 64, headersTimeout: LIMIT_MS, bodyTimeout: LIMIT_MS })
    this.url = new URL(baseUrl)
    this.headers = { 'X-Api-Key': key }
  }

  close = (): Promise<void> => this.#pool.destroy()

  create = (shape: string, more: Json = {}): Promise<Sandbox> => this.post('/v1/sandboxes', { shape, ...more })

  get = (id: string): Promise<Sandbox> => this.#json('GET', `/v1/sandboxes/${id}`)

  /** Throws unless the exit code is 0. */
  async exec(id: string, cmd: string, args: string[] = []): Promise<ExecResult> {
    const { result } = await this.post<{ result: ExecResult }>(`/v1/sandboxes/${id}/exec`, { cmd, args })
    if (result.exit_code !== 0) throw new Error(`${cmd} in ${id} exited with ${result.exit_code}: ${result.stderr}`)
    return result
  }

  sh = (id: string, script: string): Promise<ExecResult> => this.exec(id, 'sh', ['-c', script])

  post = <Data = Sandbox>(path: string, body?: Json): Promise<Data> => this.#json('POST', path, body)

  send = <Data>(method: string, path: string): Promise<Data> => this.#json(method, path)

  patch = (id: string, body: Json): Promise<Sandbox> => this.#json('PATCH', `/v1/sandboxes/${id}`, body)

  list = (): Promise<{ data: (Sandbox & { name: string })[] }> => this.#json('GET', '/v1/sandboxes?limit=500')

  async putFile(id: string, path: string, body: Buffer | Iterable<Buffer>): Promise<void> {
    const where = `/v1/sandboxes/${id}/files?path=${encodeURIComponent(path)}`
    const response = await this.#request('PUT', where, Buffer.isBuffer(body) ? body : Readable.from(body))
    await response.body.dump()
  }

  /** Returns how many bytes were received; the bytes are dropped. */
  async getFile(id: string, path: string): Promise<number> {
    const response = await this.#request('GET', `/v1/sandboxes/${id}/files?path=${encodeURIComponent(path)}`)
    let bytes = 0
    for await (const chunk of response.body) bytes += (chunk as Buffer).length
    return bytes
  }

  /** The chunks of a command's streamed output as they arrive. */
  async *stream(id: string, cmd: string, args: string[], signal: AbortSignal): AsyncGenerator<string> {
    const path = `/v1/sandboxes/${id}/exec?stream=true`
    const response = await this.#request('POST', path, JSON.stringify({ cmd, args }), signal)
    for await (const chunk of response.body) yield String(chunk)
  }

  /** The response body as a stream. */
  open = async (method: string, path: string): Promise<Readable> => (await this.#request(method, path)).body

  /** Polls, as clients do. */
  async until(id: string, status: string): Promise<void> {
    for (;;) {
      const now = await this.get(id)
      if (now.status === status) return
      if (['error', 'failed', 'destroyed'].includes(now.status)) throw new Error(`${id} is ${now.status}`)
      await delay(POLL_MS)
    }
  }

  /** Returns when the sandbox and its VM are destroyed. */
  async delete(id: string): Promise<void> {
    await this.#json('DELETE', `/v1/sandboxes/${id}`)
    while ((await this.get(id)).status !== 'destroyed') await delay(POLL_MS)
  }

  async deleteAll(): Promise<void> {
    const { data } = await this.list()
    const live = data.filter(({ status }) => status !== 'destroyed' && status !== 'failed')
    await Promise.all(live.map(({ id }) => this.delete(id)))
  }

  async #json<Data>(method: string, path: string, body?: Json): Promise<Data> {
    const response = await this.#request(method, path, body === undefined ? undefined : JSON.stringify(body))
    return ((await response.body.json()) as { data: Data }).data
  }

  async #request(method: string, path: string, body?: string | Buffer | Readable, signal?: AbortSignal) {
    const response = await this.#pool.request({
      method: method as 'GET',
      path,
      headers: this.headers,
      body: body ?? null,
      signal: signal ?? null,
    })
    if (response.statusCode < 300) return response
    const text = await response.body.text()
    if (isUnknownRoute(response.statusCode, text))
      throw new Skip(`this version of Warren does not serve ${method} ${path}`)
    throw new Error(`${method} ${path} responded ${response.statusCode}: ${text.slice(0, 300)}`)
  }
}

/** Distinguishes a route that does not exist from a sandbox that does not exist. */
const isUnknownRoute = (status: number, text: string): boolean =>
  status === 501 || (status === 404 && text.includes('route not found'))
