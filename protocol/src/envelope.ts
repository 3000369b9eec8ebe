/**
 * JSend, the envelope of every JSON answer (spec 2.1).
 *
 *   success  {status:'success', data}
 *   fail     {status:'fail', data:{<field>: text, code}}     4xx: the caller can mend it
 *   error    {status:'error', message, code}                 5xx: code is the HTTP status
 *
 * Inside `fail` every value is a string: several clients decode a map of strings and lose the message otherwise.
 */
import { type Static, type TSchema, Type } from 'typebox'

export const success = <Data extends TSchema>(data: Data) => Type.Object({ status: Type.Literal('success'), data })

export const FailEnvelope = Type.Object(
  { status: Type.Literal('fail'), data: Type.Record(Type.String(), Type.String()) },
  { description: 'The caller can mend this: the offending field or a message, and a stable code.' },
)
export type FailEnvelope = Static<typeof FailEnvelope>

export const ErrorEnvelope = Type.Object(
  {
    status: Type.Literal('error'),
    message: Type.String(),
    code: Type.Integer({ description: 'The HTTP status.' }),
    data: Type.Optional(Type.Record(Type.String(), Type.Unknown())),
  },
  { description: 'The service or something behind it failed.' },
)
export type ErrorEnvelope = Static<typeof ErrorEnvelope>

export const ok = <Data>(data: Data) => ({ status: 'success' as const, data })

/** An answer that says nothing but "done" is an empty object, never null (wire 1.2). */
export const Empty = Type.Object({})
export const Ok = Type.Object({ ok: Type.Literal(true) })

export const PAGE_LIMIT_DEFAULT = 50
export const PAGE_LIMIT_MAX = 500

/** `limit` above the maximum is clamped and 0 means the default (wire 1.3), so the schema only refuses negatives. */
export const PageQuery = Type.Object({
  limit: Type.Optional(
    Type.Integer({
      minimum: 0,
      description: `Items per page, ${PAGE_LIMIT_DEFAULT} when absent or 0, clamped to ${PAGE_LIMIT_MAX}.`,
    }),
  ),
  offset: Type.Optional(Type.Integer({ minimum: 0, maximum: Number.MAX_SAFE_INTEGER, description: 'Items to skip.' })),
})
export type PageQuery = Static<typeof PageQuery>

export const Pagination = Type.Object({
  total: Type.Integer({ description: 'Of all items, whatever limit and offset.' }),
  limit: Type.Integer(),
  offset: Type.Integer(),
  count: Type.Integer({ description: 'Of the items in this answer.' }),
})

export const page = <Item extends TSchema>(item: Item) =>
  Type.Object({ data: Type.Array(item), pagination: Pagination })

export type Page<Item> = { data: Item[]; pagination: Static<typeof Pagination> }
