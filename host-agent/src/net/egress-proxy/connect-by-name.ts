/**
 * Connects to a host by its name, if the sandbox's policy allows the name. The addresses are checked as well: a name that
 * resolves to a private address, to a sandbox, to this host or to its networks (DNS rebinding) is refused, unless the
 * sandbox's rules and the operator both allow that address.
 */
import { connect, type Socket } from 'node:net'
import type { EgressRefusal } from '@warren/protocol'
import { contains, parseCidr } from '../cidr.ts'
import { isClosedAddress } from '../closed-ranges.ts'
import { isOfMachine } from '../machine.ts'
import { allowsName, inBlocks, type Policy } from '../policy.ts'
import type { Lookup } from './lookup.ts'
import type { SandboxEgress } from './sandbox-egress.ts'

const ADDRESSES_MAX = 3
const CONNECT_LIMIT_MS = 10_000

export type ConnectResult = { socket: Socket } | { refusal: EgressRefusal } | { unreachable: true }

export async function connectByName(
  lookup: Lookup,
  sandbox: SandboxEgress,
  name: string,
  port: number,
): Promise<ConnectResult> {
  if (!allowsName(sandbox.policy, name, port)) return { refusal: 'not_allowed' }
  const addresses = await lookup.find(name)
  // The policy may have changed during the lookup.
  if (!allowsName(sandbox.policy, name, port)) return { refusal: 'not_allowed' }
  if (addresses.length === 0) return { refusal: 'name_not_found' }
  const allowed = addresses.filter((address) => allowsConnection(sandbox.policy, address, port))
  if (allowed.length === 0) return { refusal: 'private_address' }
  for (const address of allowed.slice(0, ADDRESSES_MAX)) {
    const socket = await connectTo(address, port)
    if (socket !== undefined) return { socket }
  }
  return { unreachable: true }
}

function allowsConnection(policy: Policy, address: string, port: number): boolean {
  if (inBlocks(policy.granted, address, port)) return true
  if (isClosedAddress(address) || isOfMachine(policy.machine, address)) return false
  return !contains(parseCidr(policy.cidr), { address, prefix: 32 })
}

function connectTo(host: string, port: number): Promise<Socket | undefined> {
  const { promise, resolve } = Promise.withResolvers<Socket | undefined>()
  const socket = connect({ host, port, allowHalfOpen: true, noDelay: true, keepAlive: true })
  const fail = () => {
    socket.destroy()
    resolve(undefined)
  }
  const timer = setTimeout(fail, CONNECT_LIMIT_MS)
  socket.once('error', fail)
  socket.once('connect', () => {
    clearTimeout(timer)
    socket.off('error', fail)
    resolve(socket)
  })
  return promise.finally(() => clearTimeout(timer))
}
