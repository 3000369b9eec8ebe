/**
 * System calls that Node does not offer, called through FFI (koffi). The other files of this folder bind them by subject.
 *
 * A mistake here crashes the process instead of throwing. Therefore only processes that the host agent can restart import
 * this folder: netd, the VMM launcher and the KVM probe (tools/layout.test.ts checks it), and test programs.
 *
 * All calls are synchronous, so they act on the thread that runs JavaScript. That matters for network namespaces, which
 * belong to a thread.
 */
import { getSystemErrorName } from 'node:util'
import koffi from 'koffi'

const libc = koffi.load(null)

/** A system call failed. `code` is the name of the error number, as in Node's own errors. */
export class SystemCallError extends Error {
  readonly call: string
  readonly code: string
  constructor(call: string, code: string) {
    super(`${call}: ${code}`)
    this.call = call
    this.code = code
  }
}

export const hasCode = (error: unknown, ...codes: string[]): boolean =>
  codes.includes((error as NodeJS.ErrnoException | undefined)?.code ?? '')

/** Binds a function of libc by its C declaration, such as `int close(int fd)`. */
export const bindFunction = (declaration: string): ((...args: unknown[]) => unknown) => libc.func(declaration)

/**
 * Binds a function of libc that returns a negative number on failure. The bound function repeats an interrupted call and
 * throws a SystemCallError for every other failure.
 */
export function bindSystemCall(declaration: string): (...args: unknown[]) => number {
  const call = bindFunction(declaration)
  const name = /(\w+)\(/.exec(declaration)?.[1] ?? declaration
  return (...args) => {
    for (;;) {
      const result = Number(call(...args))
      if (result >= 0) return result
      const code = lastErrorCode()
      if (code !== 'EINTR') throw new SystemCallError(name, code)
    }
  }
}

/** The name of the error number that the last call left. Only valid directly after a failed call. */
export const lastErrorCode = (): string => getSystemErrorName(-koffi.errno())
