/** The requests that wait for a reply, by id. The one place that matches replies to requests. */
import type { RpcReply } from './protocol.ts'

type PendingCall = { resolve: (result: unknown) => void; reject: (error: Error) => void }

export class PendingCalls {
  readonly #calls = new Map<number, PendingCall>()
  #nextId = 1

  /** `reply` settles with the reply to the request that is sent under this id. */
  add(): { id: number; reply: Promise<unknown> } {
    const id = this.#nextId++
    const { promise, resolve, reject } = Promise.withResolvers<unknown>()
    this.#calls.set(id, { resolve, reject })
    return { id, reply: promise }
  }

  /** A reply to a request that is not pending any more, such as one that timed out, has no effect. Returns whether it was. */
  settle(reply: RpcReply): boolean {
    const call = this.#take(reply.id)
    if ('result' in reply) call?.resolve(reply.result)
    else call?.reject(Object.assign(new Error(reply.error.message), { code: reply.error.code }))
    return call !== undefined
  }

  reject(id: number, error: Error): void {
    this.#take(id)?.reject(error)
  }

  /** When the other side exits. */
  rejectAll(error: Error): void {
    for (const id of [...this.#calls.keys()]) this.reject(id, error)
  }

  #take(id: number): PendingCall | undefined {
    const call = this.#calls.get(id)
    this.#calls.delete(id)
    return call
  }
}
