/**
 * Spans: the named steps of an operation, for the operator's traces (OpenTelemetry).
 *
 *   const base = await span('find base', () => getBase(deps, request, signal))
 *
 * A trace begins with a request to the API and follows it through the processes: each sends `traceparent()` along with its
 * requests, and the receiver runs the work in `continueTrace`. `span` adds a step to the operation that it is called in;
 * outside of a trace it only runs the work, so heartbeats and other background work leave no spans.
 *
 * Until `setTracing` is called (tracing.ts), and that is only if the operator has set an endpoint, each of these is one
 * comparison, and none of OpenTelemetry's code is loaded.
 */
export type Tracing = {
  span<T>(name: string, work: () => Promise<T>): Promise<T>
  continueTrace<T>(traceparent: string, operation: Operation, work: () => Promise<T>): Promise<T>
  traceparent(): string | undefined
  addSpans(spans: MeasuredSpan[]): void
}

export type Operation = { name: string; sandbox?: string | undefined }

/** A step that was measured elsewhere. Times are those of `performance.now()`. The first is the parent of the others. */
export type MeasuredSpan = { name: string; startedAt: number; endedAt: number }

let tracing: Tracing | undefined

export function setTracing(started: Tracing | undefined): void {
  tracing = started
}

export const span = <T>(name: string, work: () => Promise<T>): Promise<T> =>
  tracing === undefined ? work() : tracing.span(name, work)

/** Runs what another process asked for. Without a `traceparent` the caller does not trace, and neither does this. */
export const continueTrace = <T>(
  traceparent: string | undefined,
  operation: Operation,
  work: () => Promise<T>,
): Promise<T> =>
  tracing === undefined || traceparent === undefined ? work() : tracing.continueTrace(traceparent, operation, work)

/** The current step, in the form of the header `traceparent` (W3C Trace Context); undefined outside of a trace. */
export const traceparent = (): string | undefined => tracing?.traceparent()

/** The same as a header to send, or none. */
export function traceHeader(): { traceparent?: string } {
  const value = traceparent()
  return value === undefined ? {} : { traceparent: value }
}

/** Adds steps that a guest has measured to the current operation. */
export const addSpans = (spans: MeasuredSpan[]): void => tracing?.addSpans(spans)
