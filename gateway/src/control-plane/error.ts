/** A request to the control plane that failed. `status` is 0 when there was no response. */
export class ControlPlaneError extends Error {
  override name = 'ControlPlaneError'
  readonly status: number
  /** As in docs/api.md#errors; undefined when the response has none. */
  readonly code: string | undefined

  constructor(status: number, message: string, options: { code?: string | undefined; cause?: unknown } = {}) {
    super(message, { cause: options.cause })
    this.status = status
    this.code = options.code
  }

  /** The same request may succeed later: the control plane restarts, is busy, or has no room at the moment. */
  get isTransient(): boolean {
    return this.status === 0 || this.status === 429 || this.status >= 500
  }
}

type Body = { message?: string; data?: Record<string, unknown> | null }

/** The API answers with JSend: `fail` names fields in `data`, `error` has a message. */
export function readError(what: string, status: number, text: string): ControlPlaneError {
  const body = parse(text)
  const code = typeof body.data?.code === 'string' ? body.data.code : undefined
  const fields = Object.entries(body.data ?? {})
    .filter(([name]) => name !== 'code')
    .map(([name, value]) => (name === 'message' ? String(value) : `${name}: ${String(value)}`))
  const detail = body.message ?? (fields.length > 0 ? fields.join(', ') : `status ${status}`)
  return new ControlPlaneError(status, `failed to ${what}: ${detail}`, { code })
}

function parse(text: string): Body {
  try {
    return (JSON.parse(text) as Body | null) ?? {}
  } catch {
    return {} // Not a response of the API.
  }
}
