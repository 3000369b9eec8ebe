/** Which blocks are in ranges that are closed to sandboxes (CLOSED_RANGES in the protocol). */
import { CLOSED_RANGES } from '@warren/protocol'
import { type Cidr, contains, parseCidr } from './cidr.ts'

const parsed = CLOSED_RANGES.map(parseCidr)

export const isClosedBlock = (block: Cidr): boolean => parsed.some((range) => contains(range, block))
export const isClosedAddress = (address: string): boolean => isClosedBlock({ address, prefix: 32 })
