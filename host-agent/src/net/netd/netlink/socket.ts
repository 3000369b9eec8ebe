/**
 * A conversation with the kernel's routing code. A socket stays in the network namespace it was opened in: netd keeps
 * one for the host and opens one for each visit to a slot.
 */
import { getSystemErrorName } from 'node:util'
import { closeSocket, openSocket, receive, SystemCallError, send } from '../libc.ts'
import { type Answer, NLM_F, NLMSG_DONE, NLMSG_ERROR, parseMessages, type Request, renderMessage } from './message.ts'

const AF_NETLINK = 16
const SOCK_RAW = 3
export const NETLINK_ROUTE = 0
/** The kernel fills at most 32 KiB per read of a dump. */
const RECEIVE_BYTES = 64 * 1024

export class NetlinkSocket implements Disposable {
  readonly #fd: number
  readonly #buffer = Buffer.alloc(RECEIVE_BYTES)
  #sequence = 1

  constructor(protocol = NETLINK_ROUTE) {
    this.#fd = openSocket(AF_NETLINK, SOCK_RAW, protocol)
  }

  /** One after the other in one system call; stops at none, throws the first refusal. `what` names them in the error. */
  change(what: string, ...requests: Request[]): void {
    const first = this.#sequence
    this.#sequence += requests.length
    const messages = requests.map((request, index) =>
      renderMessage({ ...request, flags: request.flags | NLM_F.ACK }, first + index),
    )
    send(this.#fd, Buffer.concat(messages))

    let refusal: string | undefined
    for (let acknowledged = 0; acknowledged < requests.length; ) {
      for (const answer of this.#receive()) {
        if (answer.type !== NLMSG_ERROR || answer.sequence < first) continue
        acknowledged++
        refusal ??= errorOf(answer)
      }
    }
    if (refusal !== undefined) throw new SystemCallError(what, refusal)
  }

  /**
   * All of them or none, as nf_tables wants it: between a beginning and an end that are not acknowledged themselves. A
   * refusal of the whole names the beginning.
   */
  transact(what: string, { begin, requests, end }: { begin: Request; requests: Request[]; end: Request }): void {
    const first = this.#sequence
    this.#sequence += requests.length + 2
    const acknowledged = requests.map((request) => ({ ...request, flags: request.flags | NLM_F.ACK }))
    const messages = [begin, ...acknowledged, end].map((request, index) => renderMessage(request, first + index))
    send(this.#fd, Buffer.concat(messages))

    let refusal: string | undefined
    for (let open = requests.length; open > 0; ) {
      for (const answer of this.#receive()) {
        if (answer.type !== NLMSG_ERROR || answer.sequence < first) continue
        refusal ??= errorOf(answer)
        if (answer.sequence === first) open = 0
        else open--
      }
    }
    if (refusal !== undefined) throw new SystemCallError(what, refusal)
  }

  dump(what: string, request: Request): Answer[] {
    const sequence = this.#sequence++
    send(this.#fd, renderMessage({ ...request, flags: request.flags | NLM_F.DUMP }, sequence))
    const found: Answer[] = []
    for (;;) {
      for (const answer of this.#receive()) {
        if (answer.sequence !== sequence) continue
        if (answer.type === NLMSG_DONE) return found
        const refusal = answer.type === NLMSG_ERROR ? errorOf(answer) : undefined
        if (refusal !== undefined) throw new SystemCallError(what, refusal)
        found.push(answer)
      }
    }
  }

  [Symbol.dispose](): void {
    closeSocket(this.#fd)
  }

  #receive(): Answer[] {
    const length = receive(this.#fd, this.#buffer)
    return parseMessages(Buffer.from(this.#buffer.subarray(0, length)))
  }
}

/** struct nlmsgerr begins with the negative error number; 0 is the acknowledgement. */
function errorOf(answer: Answer): string | undefined {
  const error = answer.body.readInt32LE(0)
  return error === 0 ? undefined : getSystemErrorName(error)
}
