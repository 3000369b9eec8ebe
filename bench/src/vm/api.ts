/** The sandbox API as the rows about virtual machines use it: over one kept pool of connections, nothing retried. */
import { Readable } from 'node:stream'
import { setTimeout as delay } from 'node:timers/promises'
import { Pool } from 'undici'
import { Skip } from '../skip.ts'

export type Sandbox = { id: string; status: string }
export type ExecResult = { exit_code: number; stdout: string; stderr: string }
type Json = Record<string, unknown>

/** An emulated machine on a busy one takes its time. */
const LIMIT_MS = 10 * 60_000
const POLL_MS = 2

export class Api {
  readonly #pool: Pool
  /** For those who speak to it without the pool. */
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

  /** Throws unless it ends with 0. */
  async exec(id: string, cmd: string, args: string[] = []): Promise<ExecResult> {
    const { result } = await this.post<{ result: ExecResult }>(`/v1/sandboxes/${id}/exec`, { cmd, args })
    if (result.exit_code !== 0) throw new Error(`${cmd} in ${id} ended with ${result.exit_code}: ${result.stderr}`)
    return result
  }

  sh = (id: string, script: string): Promise<ExecResult> => this.exec(id, 'sh', ['-c', script])

  post = <Data = Sandbox>(path: string, body?: Json): Promise<Data> => this.#json('POST', path, body)

  async putFile(id: string, path: string, body: Buffer | Iterable<Buffer>): Promise<void> {
    const where = `/v1/sandboxes/${id}/files?path=${encodeURIComponent(path)}`
    await this.#request('PUT', where, Buffer.isBuffer(body) ? body : Readable.from(body)).then((answer) =>
      answer.body.dump(),
    )
  }

  /** How many bytes came; they are dropped as they come. */
  async getFile(id: string, path: string): Promise<number> {
    const answer = await this.#request('GET', `/v1/sandboxes/${id}/files?path=${encodeURIComponent(path)}`)
    let bytes = 0
    for await (const chunk of answer.body) bytes += (chunk as Buffer).length
    return bytes
  }

  /** The lines of a command as they come. */
  async *stream(id: string, cmd: string, args: string[], signal: AbortSignal): AsyncGenerator<string> {
    const path = `/v1/sandboxes/${id}/exec?stream=true`
    const answer = await this.#request('POST', path, JSON.stringify({ cmd, args }), signal)
    for await (const chunk of answer.body) yield String(chunk)
  }

  /** Whatever is answered, as it comes. */
  open = async (method: string, path: string): Promise<Readable> => (await this.#request(method, path)).body

  /** Seen by asking: there is no other way for a client. */
  async until(id: string, status: string): Promise<void> {
    for (;;) {
      const now = await this.get(id)
      if (now.status === status) return
      if (['error', 'failed', 'destroyed'].includes(now.status)) throw new Error(`${id} is ${now.status}`)
      await delay(POLL_MS)
    }
  }

  /** Answers when it is gone, with its VM. */
  async delete(id: string): Promise<void> {
    await this.#json('DELETE', `/v1/sandboxes/${id}`)
    while ((await this.get(id)).status !== 'destroyed') await delay(POLL_MS)
  }

  async deleteAll(): Promise<void> {
    const { data } = await this.#json<{ data: Sandbox[] }>('GET', '/v1/sandboxes?limit=500')
    const living = data.filter(({ status }) => status !== 'destroyed' && status !== 'failed')
    await Promise.all(living.map(({ id }) => this.delete(id)))
  }

  async #json<Data>(method: string, path: string, body?: Json): Promise<Data> {
    const answer = await this.#request(method, path, body === undefined ? undefined : JSON.stringify(body))
    return ((await answer.body.json()) as { data: Data }).data
  }

  async #request(method: string, path: string, body?: string | Buffer | Readable, signal?: AbortSignal) {
    const answer = await this.#pool.request({
      method: method as 'GET',
      path,
      headers: this.headers,
      body: body ?? null,
      signal: signal ?? null,
    })
    if (answer.statusCode < 300) return answer
    const text = await answer.body.text()
    if (isUnknownRoute(answer.statusCode, text)) throw new Skip(`this Warren does not serve ${method} ${path}`)
    throw new Error(`${method} ${path} answered ${answer.statusCode}: ${text.slice(0, 300)}`)
  }
}

/** A path that is not served yet, unlike a sandbox that is not there. */
const isUnknownRoute = (status: number, text: string): boolean =>
  status === 501 || (status === 404 && text.includes('route not found'))
