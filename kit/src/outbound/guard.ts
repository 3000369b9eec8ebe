/**
 * Resolves the host of a server that a user has named, and decides whether it may be connected to (addresses.ts).
 *
 * A name is resolved once for each connection, by the function that the socket itself calls, and the socket connects to an
 * address that this function has checked. There is no second lookup in between, so a name that changes its address after the
 * check gains nothing. If any address of a name is closed, the name is refused.
 */
import { isIP, type LookupFunction } from 'node:net'
import { type AddressPolicy, createAddressPolicy } from './addresses.ts'
import { createResolve } from './resolve.ts'

/** Names no address: what a private name resolves to is not for the user to learn. */
export class HostNotAllowed extends Error {
  override name = 'HostNotAllowed'
  constructor() {
    super('the host is or resolves to an address that may not be connected to')
  }
}

export type OutboundGuard = {
  /** Checks a host that is an address, for which no lookup is made. Names are checked when they are resolved. */
  isAllowedHost(hostname: string, allowLoopback: boolean): boolean
  /** For `net.connect`. */
  lookup(allowLoopback: boolean): LookupFunction
  /** Resolves the host of a URL as a connection would. A name that does not resolve may do so later, and is allowed. */
  isAllowedNow(url: URL, allowLoopback: boolean): Promise<boolean>
}

/** `privateCidrs`: blocks that the operator has opened. */
export function createOutboundGuard(
  privateCidrs: readonly string[],
  resolve = createResolve(),
  policy: AddressPolicy = createAddressPolicy(privateCidrs),
): OutboundGuard {
  function lookup(allowLoopback: boolean): LookupFunction {
    return (hostname, options, callback) =>
      resolve(hostname, (error, addresses) => {
        if (error) return callback(error, '', 0)
        const isAllowed =
          addresses.length > 0 && addresses.every(({ address }) => policy.isAllowed(address, allowLoopback))
        if (!isAllowed) return callback(new HostNotAllowed(), '', 0)
        if (options.all) return callback(null, addresses as never)
        callback(null, addresses[0]!.address, addresses[0]!.family)
      })
  }

  return {
    isAllowedHost: (hostname, allowLoopback) => isIP(hostname) === 0 || policy.isAllowed(hostname, allowLoopback),
    lookup,
    isAllowedNow(url, allowLoopback) {
      const hostname = hostnameOf(url)
      if (isIP(hostname) !== 0) return Promise.resolve(policy.isAllowed(hostname, allowLoopback))
      const { promise, resolve: settle } = Promise.withResolvers<boolean>()
      setTimeout(() => settle(true), CHECK_LIMIT_MS).unref()
      lookup(allowLoopback)(hostname, { all: true }, (error) => settle(!(error instanceof HostNotAllowed)))
      return promise
    },
  }
}

/** A slow name server must not hold up the request; every connection checks again. */
const CHECK_LIMIT_MS = 3_000

/** Without the brackets of an IPv6 address. The URL parser has turned decimal, octal and short forms into dotted ones. */
export const hostnameOf = (url: URL): string => url.hostname.replace(/^\[|\]$/g, '')
