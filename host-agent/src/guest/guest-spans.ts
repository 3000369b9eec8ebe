/** Turns the times that a guest reports for a traced request (protocol/src/guest-spans.ts) into spans. */
import type { IncomingHttpHeaders } from 'node:http2'
import { matches } from '@warren/kit/matches'
import { addSpans, type MeasuredSpan, traceparent } from '@warren/kit/span'
import { GUEST_SPANS_HEADER, GUEST_SPANS_MAX_CHARACTERS, GuestSpans } from '@warren/protocol'

/** Between these times, in milliseconds of `performance.now()`, the host waited for the response. */
type Waited = { from: number; to: number }

/** Call it in the span that waited for the response. `name`: of the request, as the host knows it. */
export function addGuestSpans(name: string, headers: IncomingHttpHeaders, waited: Waited): void {
  if (traceparent() === undefined) return
  const report = parseReport(headers[GUEST_SPANS_HEADER])
  if (report) addSpans(placeSpans(name, report, waited))
}

export function parseReport(text: unknown): GuestSpans | undefined {
  if (typeof text !== 'string' || text.length > GUEST_SPANS_MAX_CHARACTERS) return undefined
  try {
    const report: unknown = JSON.parse(text)
    return matches(GuestSpans, report) ? report : undefined
  } catch {
    return undefined
  }
}

/**
 * The clocks of host and guest are not related, so the guest's time is placed in the middle of the time that the host
 * waited, as if request and response had been under way equally long. Empty if the guest claims more time than that.
 */
export function placeSpans(name: string, { took_us, steps }: GuestSpans, { from, to }: Waited): MeasuredSpan[] {
  const underWayMs = to - from - took_us / 1000
  const fits = underWayMs >= 0 && steps.every((step) => step.at_us + step.took_us <= took_us)
  if (!fits) return []
  const arrivedAt = from + underWayMs / 2
  const place = (spanName: string, at_us: number, us: number): MeasuredSpan => {
    const startedAt = arrivedAt + at_us / 1000
    return { name: spanName, startedAt, endedAt: startedAt + us / 1000 }
  }
  return [place(name, 0, took_us), ...steps.map((step) => place(step.name, step.at_us, step.took_us))]
}
