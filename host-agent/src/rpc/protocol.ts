/** The messages of a request and its reply between two processes or threads of the host agent. */

import { type Static, Type } from 'typebox'

/** The methods that one side offers, by name. */
export type Calls = Record<string, (...params: never[]) => unknown>
export type Method<C> = keyof C & string
export type Params<C, M extends keyof C> = C[M] extends (...params: infer P) => unknown ? P : never
export type Result<C, M extends keyof C> = C[M] extends (...params: never[]) => infer R ? R : never

export type RpcRequest = { id: number; method: string; params: unknown[] }
export const RpcError = Type.Object({
  message: Type.String({ maxLength: 10_000 }),
  code: Type.Optional(Type.String({ maxLength: 100 })),
})
export type RpcError = Static<typeof RpcError>
export const RpcReply = Type.Union([
  Type.Object({ id: Type.Integer(), result: Type.Unknown() }),
  Type.Object({ id: Type.Integer(), error: RpcError }),
])
export type RpcReply = { id: number; result: unknown } | { id: number; error: RpcError }
