/** Calls an external identity service, with limits on time and size. Every failure becomes a 502 that names the service. */
import { errorText } from '@warren/kit/error-text'
import { upstreamUnavailable } from '@warren/kit/failure'

const TIMEOUT_MS = 3_000
const RESPONSE_MAX_CHARACTERS = 64 * 1024

export async function callService(
  name: string,
  url: string,
  init: RequestInit,
): Promise<{ status: number; body: unknown }> {
  try {
    const response = await fetch(url, { ...init, redirect: 'error', signal: AbortSignal.timeout(TIMEOUT_MS) })
    const text = await response.text()
    if (text.length > RESPONSE_MAX_CHARACTERS)
      throw new Error(`response is longer than ${RESPONSE_MAX_CHARACTERS} characters`)
    return { status: response.status, body: response.ok ? JSON.parse(text) : undefined }
  } catch (error) {
    throw upstreamUnavailable(`${name} unavailable`, { cause: new Error(errorText(error), { cause: error }) })
  }
}

export const isRecord = (value: unknown): value is Record<string, unknown> =>
  typeof value === 'object' && value !== null && !Array.isArray(value)
