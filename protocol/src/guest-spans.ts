/**
 * What a guest agent reports about the time that a request took in the guest. It is asked for with the header
 * `traceparent`, and answers with the header GUEST_SPANS_HEADER: GuestSpans as JSON. Times are microseconds of the guest's
 * monotonic clock since the request arrived.
 *
 * The guest is not trusted. A report that is longer than GUEST_SPANS_MAX_CHARACTERS or does not match the schema is ignored
 * as a whole, and so is one whose times do not fit into the time that the host has measured.
 */
import { type Static, Type } from 'typebox'

export const GUEST_SPANS_HEADER = 'warren-spans'
export const GUEST_SPANS_MAX_CHARACTERS = 4_096

const Microseconds = Type.Integer({ minimum: 0, maximum: Number.MAX_SAFE_INTEGER })

export const GuestSpans = Type.Object({
  took_us: Microseconds,
  steps: Type.Array(
    Type.Object({
      name: Type.String({ pattern: '^[a-z][a-z ]{0,31}$' }),
      at_us: Microseconds,
      took_us: Microseconds,
    }),
    { maxItems: 16 },
  ),
})
export type GuestSpans = Static<typeof GuestSpans>
