/**
 * The envelope of every JSON response (docs/api.md#response-envelope), after JSend:
 *
 *   success  {status:'success', data}
 *   fail     {status:'fail', data:{<field>: text, code}}     4xx: the request has to change
 *   error    {status:'error', message, code}                 5xx: code is the HTTP status
 *
 * Inside `fail` every value is a string, because clients decode it as a map of strings.
 */
import { type Static, type TSchema, Type } from 'typebox'

export const success = <Data extends TSchema>(data: Data) => Type.Object({ status: Type.Literal('success'), data })

export const FailEnvelope = Type.Object(
  { status: Type.Literal('fail'), data: Type.Record(Type.String(), Type.String()) },
  { description: 'The request cannot be served as it is: the invalid field or a message, and a stable code.' },
)
export type FailEnvelope = Static<typeof FailEnvelope>

export const ErrorEnvelope = Type.Object(
  {
    status: Type.Literal('error'),
    message: Type.String(),
    code: Type.Integer({ description: 'HTTP status.' }),
    data: Type.Optional(Type.Record(Type.String(), Type.Unknown())),
  },
  { description: 'The service or one of its dependencies failed. The same request may succeed later.' },
)
export type ErrorEnvelope = Static<typeof ErrorEnvelope>

export const ok = <Data>(data: Data) => ({ status: 'success' as const, data })

/** A response without content is an empty object, never null. */
export const Empty = Type.Object({})
export const Ok = Type.Object({ ok: Type.Literal(true) })

export const PAGE_LIMIT_DEFAULT = 50
export const PAGE_LIMIT_MAX = 500

/** Only negative values are invalid: a `limit` above the maximum is reduced to it, and 0 means the default. */
export const PageQuery = Type.Object({
  limit: Type.Optional(
    Type.Integer({
      minimum: 0,
      description: `Items per page. Defaults to ${PAGE_LIMIT_DEFAULT}; values above ${PAGE_LIMIT_MAX} are reduced to it.`,
    }),
  ),
  offset: Type.Optional(
    Type.Integer({ minimum: 0, maximum: Number.MAX_SAFE_INTEGER, description: 'Number of items to skip.' }),
  ),
})
export type PageQuery = Static<typeof PageQuery>

export const Pagination = Type.Object({
  total: Type.Integer({ description: 'Number of all items, regardless of limit and offset.' }),
  limit: Type.Integer(),
  offset: Type.Integer(),
  count: Type.Integer({ description: 'Number of items in this response.' }),
})

export const page = <Item extends TSchema>(item: Item) =>
  Type.Object({ data: Type.Array(item), pagination: Pagination })

export type Page<Item> = { data: Item[]; pagination: Static<typeof Pagination> }
