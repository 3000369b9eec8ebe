/** A client of the gateway: signs each request anew, and turns error bodies into messages. */
import { randomUUID } from 'node:crypto'
import type { PrivateKeyAccount } from 'viem/accounts'

export class AnswerError extends Error {
  override name = 'AnswerError'
  readonly status: number
  readonly headers: Headers
  readonly body: Record<string, unknown>

  constructor(status: number, headers: Headers, body: Record<string, unknown>) {
    super([body.error ?? `status ${status}`, body.reason, body.warning].filter(Boolean).join(': '))
    this.status = status
    this.headers = headers
    this.body = body
  }
}

/** No response: the gateway is not there, or restarts. */
export class Unreachable extends Error {
  override name = 'Unreachable'
}

export type GatewayClient = ReturnType<typeof createClient>

const LIMIT_MS = 180_000

export function createClient(baseUrl: string, account: PrivateKeyAccount | undefined) {
  async function send(method: string, url: string, options: { body?: unknown; headers?: Record<string, string> } = {}) {
    const init = {
      method,
      headers: { ...(account ? await sign(account) : {}), ...options.headers },
      signal: AbortSignal.timeout(LIMIT_MS),
      ...(options.body === undefined ? {} : { body: JSON.stringify(options.body) }),
    }
    const response = await fetch(`${baseUrl}${url}`, init).catch((error: Error) => {
      throw new Unreachable(`cannot reach ${baseUrl}`, { cause: error.cause ?? error })
    })
    if (response.ok) return response
    const text = await response.text()
    throw new AnswerError(response.status, response.headers, parse(text))
  }
  return {
    account,
    async call<Result>(method: string, url: string, body?: unknown, headers: Record<string, string> = {}) {
      return (await (await send(method, url, { body, headers })).json()) as Result
    },
    /** One object per line. */
    async lines<Line>(url: string): Promise<Line[]> {
      const text = await (await send('GET', url)).text()
      return text
        .split('\n')
        .filter(Boolean)
        .map((line) => JSON.parse(line) as Line)
    },
  }
}

async function sign(account: PrivateKeyAccount): Promise<Record<string, string>> {
  const [timestamp, nonce] = [String(Date.now()), randomUUID()]
  const signature = await account.signMessage({ message: `${account.address}:${timestamp}:${nonce}` })
  return {
    'X-Wallet-Address': account.address,
    'X-Timestamp': timestamp,
    'X-Nonce': nonce,
    'X-Signature': signature,
  }
}

function parse(text: string): Record<string, unknown> {
  try {
    return JSON.parse(text) as Record<string, unknown>
  } catch {
    return {} // Not an answer of the gateway.
  }
}
