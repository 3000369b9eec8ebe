/** Runs the handler of a request and returns the reply, a failure included. */
import type { Calls, Params, Result, RpcError, RpcReply, RpcRequest } from './protocol.ts'

export type Handlers<C extends Calls> = {
  [M in keyof C]: (...params: Params<C, M>) => Result<C, M> | Promise<Result<C, M>>
}

export async function serveRequest<C extends Calls>(handlers: Handlers<C>, request: RpcRequest): Promise<RpcReply> {
  const { id, method, params } = request
  try {
    const handler = handlers[method] as unknown as (...params: unknown[]) => unknown
    return { id, result: await handler(...params) }
  } catch (error) {
    return { id, error: renderError(error) }
  }
}

/** Error objects do not cross the channel: the messages of all causes are joined, and the first code is sent along. */
export function renderError(error: unknown): RpcError {
  const code = findCode(error)
  return { message: fullMessage(error), ...(code === undefined ? {} : { code }) }
}

function fullMessage(error: unknown): string {
  if (!(error instanceof Error)) return String(error)
  return error.cause === undefined ? error.message : `${error.message}: ${fullMessage(error.cause)}`
}

function findCode(error: unknown): string | undefined {
  for (let at = error; at instanceof Error; at = at.cause) {
    const { code } = at as NodeJS.ErrnoException
    if (code !== undefined) return code
  }
  return undefined
}
