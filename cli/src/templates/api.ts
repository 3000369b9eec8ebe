/** The log of a build through the API. A connection that is lost is opened again after the last line that arrived. */
import { setTimeout as delay } from 'node:timers/promises'
import { NdjsonDecoder, type TemplateLogFinal, type TemplateLogFrame, type TemplateLogLine } from '@warren/protocol'
import { type Api, renderApiError } from '../api.ts'

const RETRY_MS = 1_000
/** Without a line in between. */
const RETRIES_MAX = 30

type Options = { attempt?: number | undefined; onLine: (line: TemplateLogLine) => void; retryMs?: number }

/** Resolves with the status in which the build ended. */
export async function followLog(api: Api, template: string, options: Options): Promise<TemplateLogFinal['status']> {
  const { attempt, onLine, retryMs = RETRY_MS } = options
  let after = 0
  for (let failures = 0; ; await delay(retryMs)) {
    try {
      for await (const frame of readLog(api, template, { after, attempt })) {
        if ('final' in frame) return frame.status
        after = frame.number
        failures = 0
        onLine(frame)
      }
      throw new Error('the connection was closed before the end of the log')
    } catch (error) {
      if (error instanceof Refused || ++failures > RETRIES_MAX) throw error
    }
  }
}

/** The request itself is at fault, so repeating it does not help. */
class Refused extends Error {}

async function* readLog(
  { baseUrl, key }: Api,
  template: string,
  { after, attempt = 0 }: { after: number; attempt?: number | undefined },
): AsyncGenerator<TemplateLogFrame, void> {
  const path = `/v1/templates/${encodeURIComponent(template)}/logs?follow=true&after=${after}&attempt=${attempt}`
  const response = await fetch(`${baseUrl}${path}`, { headers: { 'X-Api-Key': key } })
  if (!response.ok) {
    const message = renderApiError(response.status, await response.text())
    throw response.status < 500 ? new Refused(message) : new Error(message)
  }
  const decoder = new NdjsonDecoder()
  for await (const chunk of response.body as AsyncIterable<Uint8Array>) {
    yield* decoder.push(chunk) as Iterable<TemplateLogFrame>
  }
}
