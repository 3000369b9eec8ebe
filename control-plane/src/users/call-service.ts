/** Asking another service who somebody is: one HTTP call, bounded in time and size; its troubles are ours to name. */
import { upstreamUnavailable } from '@warren/kit/failure'
import { errorText } from '@warren/kit/text'

const LIMIT_MS = 3_000
const ANSWER_MAX_CHARACTERS = 64 * 1024

export async function callService(
  name: string,
  url: string,
  init: RequestInit,
): Promise<{ status: number; answer: unknown }> {
  try {
    const response = await fetch(url, { ...init, redirect: 'error', signal: AbortSignal.timeout(LIMIT_MS) })
    const text = await response.text()
    if (text.length > ANSWER_MAX_CHARACTERS) throw new Error('its answer is too long')
    return { status: response.status, answer: response.ok ? JSON.parse(text) : undefined }
  } catch (error) {
    throw upstreamUnavailable(`${name} unavailable`, { cause: new Error(errorText(error), { cause: error }) })
  }
}

export const isRecord = (value: unknown): value is Record<string, unknown> =>
  typeof value === 'object' && value !== null && !Array.isArray(value)
