/**
 * What the rules of every sandbox must know about this machine. It changes while sandboxes run: a lease of DHCP, a new
 * container bridge, the port of the API (guard-host.ts).
 */
import { CLOSED_RANGES } from '@warren/protocol'
import { addressNumber, type Cidr, contains, parseCidr, removeContained, renderCidr } from './cidr.ts'
import type { ApiListener } from './netd-protocol.ts'

/** Closed to sandboxes: behind these addresses are services that trust their own network. */
export type MachineNetwork = {
  /** The addresses of this machine, beside HOST_ADDRESS and loopback. */
  addresses: string[]
  /** The networks that it is connected to, as far as CLOSED_RANGES does not contain them. They do not overlap. */
  subnets: string[]
}

export type Machine = MachineNetwork & {
  api: ApiListener
  /** At HOST_ADDRESS. */
  dnsPort: number
  /** Of the S3 proxy at HOST_ADDRESS; 0 if there is none. */
  s3Port: number
  /** DNS queries over UDP that one sandbox may send. */
  dnsPerSecond: number
}

const closed = CLOSED_RANGES.map(parseCidr)

export const toMachineNetwork = (addresses: readonly string[], connected: readonly Cidr[]): MachineNetwork => ({
  addresses: [...new Set(addresses)].sort((one, other) => addressNumber(one) - addressNumber(other)),
  subnets: removeContained(connected.filter((block) => !closed.some((range) => contains(range, block)))).map(
    renderCidr,
  ),
})

export const isOfMachine = ({ addresses, subnets }: MachineNetwork, address: string): boolean =>
  addresses.includes(address) || subnets.some((block) => contains(parseCidr(block), { address, prefix: 32 }))

export const isSameMachine = (one: Machine, other: Machine): boolean => toText(one) === toText(other)

const toText = ({ addresses, subnets, api, dnsPort, s3Port, dnsPerSecond }: Machine): string =>
  JSON.stringify([addresses, subnets, api.port, api.beyondLoopback, dnsPort, s3Port, dnsPerSecond])
