/** Counts the open connections of each client address, so that one client cannot use up all that a process can hold. */
import type { Socket } from 'node:net'

export class ConnectionsPerAddress {
  readonly #max: number
  readonly #counts = new Map<string, number>()

  constructor(max: number) {
    this.#max = max
  }

  /** Counts a new connection until it closes. Returns false if its address has too many already. */
  admit(socket: Socket, address: string): boolean {
    const before = this.#counts.get(address) ?? 0
    if (before >= this.#max) return false
    this.#counts.set(address, before + 1)
    socket.once('close', () => {
      const remaining = this.#counts.get(address)! - 1 // Counted above.
      if (remaining === 0) this.#counts.delete(address)
      else this.#counts.set(address, remaining)
    })
    return true
  }
}
