/**
 * A netlink socket. It keeps acting on the network namespace in which it was opened: netd has one for the host and opens
 * another one whenever it enters a slot.
 */
import { getSystemErrorName } from 'node:util'
import { closeSocket, openSocket, receive, send } from '../../../ffi/socket.ts'
import { SystemCallError } from '../../../ffi/system-call.ts'
import {
  NLM_F,
  NLM_F_DUMP_INTR,
  NLMSG_DONE,
  NLMSG_ERROR,
  parseMessages,
  type Request,
  type Response,
  renderMessage,
} from './message.ts'

const AF_NETLINK = 16
const SOCK_RAW = 3
export const NETLINK_ROUTE = 0
/** The kernel fills at most 32 KiB per read of a dump. */
const RECEIVE_BYTES = 64 * 1024
/** Reading a list takes milliseconds. One that changes during each of these attempts is being flooded. */
const DUMP_ATTEMPTS_MAX = 20

export class NetlinkSocket implements Disposable {
  readonly #fd: number
  readonly #buffer = Buffer.alloc(RECEIVE_BYTES)
  #sequence = 1

  constructor(protocol = NETLINK_ROUTE) {
    this.#fd = openSocket(AF_NETLINK, SOCK_RAW, protocol)
  }

  /**
   * Sends all requests in one system call. The kernel runs them in order and does not stop at a failure; the first failure
   * is thrown. `what` describes the requests in the error.
   */
  change(what: string, ...requests: Request[]): void {
    const first = this.#sequence
    this.#sequence += requests.length
    const messages = requests.map((request, index) =>
      renderMessage({ ...request, flags: request.flags | NLM_F.ACK }, first + index),
    )
    send(this.#fd, Buffer.concat(messages))

    let failure: string | undefined
    for (let acknowledged = 0; acknowledged < requests.length; ) {
      for (const response of this.receive()) {
        if (response.type !== NLMSG_ERROR || response.sequence < first) continue
        acknowledged++
        failure ??= findError(response)
      }
    }
    if (failure !== undefined) throw new SystemCallError(what, failure)
  }

  /**
   * Runs all requests or none, as nf_tables requires it: between a begin and an end message, which are not acknowledged. An
   * error for the transaction as a whole has the sequence number of the begin message.
   */
  transact(what: string, { begin, requests, end }: { begin: Request; requests: Request[]; end: Request }): void {
    const first = this.#sequence
    this.#sequence += requests.length + 2
    const acknowledged = requests.map((request) => ({ ...request, flags: request.flags | NLM_F.ACK }))
    const messages = [begin, ...acknowledged, end].map((request, index) => renderMessage(request, first + index))
    send(this.#fd, Buffer.concat(messages))

    let failure: string | undefined
    for (let unanswered = requests.length; unanswered > 0; ) {
      for (const response of this.receive()) {
        if (response.type !== NLMSG_ERROR || response.sequence < first) continue
        failure ??= findError(response)
        if (response.sequence === first) unanswered = 0
        else unanswered--
      }
    }
    if (failure !== undefined) throw new SystemCallError(what, failure)
  }

  /** For a request with a single response. */
  get(what: string, request: Request): Response {
    const sequence = this.#sequence++
    send(this.#fd, renderMessage(request, sequence))
    for (;;) {
      for (const response of this.receive()) {
        if (response.sequence !== sequence) continue
        const failure = response.type === NLMSG_ERROR ? findError(response) : undefined
        if (failure !== undefined) throw new SystemCallError(what, failure)
        return response
      }
    }
  }

  /** The kernel returns a long list in parts. If it says that the list changed meanwhile, entries may be missing or twice there. */
  dump(what: string, request: Request): Response[] {
    for (let attempt = 1; attempt <= DUMP_ATTEMPTS_MAX; attempt++) {
      const found = this.#dumpOnce(what, request)
      if (found !== 'interrupted') return found
    }
    throw new SystemCallError(what, 'EINTR')
  }

  #dumpOnce(what: string, request: Request): Response[] | 'interrupted' {
    const sequence = this.#sequence++
    send(this.#fd, renderMessage({ ...request, flags: request.flags | NLM_F.DUMP }, sequence))
    const found: Response[] = []
    let isInterrupted = false
    for (;;) {
      for (const response of this.receive()) {
        if (response.sequence !== sequence) continue
        isInterrupted ||= (response.flags & NLM_F_DUMP_INTR) !== 0
        // Read to its end in either case, so that nothing of it is left in the socket.
        if (response.type === NLMSG_DONE) return isInterrupted ? 'interrupted' : found
        const failure = response.type === NLMSG_ERROR ? findError(response) : undefined
        if (failure !== undefined) throw new SystemCallError(what, failure)
        found.push(response)
      }
    }
  }

  [Symbol.dispose](): void {
    closeSocket(this.#fd)
  }

  /** Waits for the next messages. Tests override it. */
  protected receive(): Response[] {
    const length = receive(this.#fd, this.#buffer)
    return parseMessages(Buffer.from(this.#buffer.subarray(0, length)))
  }
}

/** struct nlmsgerr starts with the negative error number; 0 is an acknowledgement. */
function findError(response: Response): string | undefined {
  const error = response.body.readInt32LE(0)
  return error === 0 ? undefined : getSystemErrorName(error)
}
