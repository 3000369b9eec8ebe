/** Reads the counters of a slot's table and the destinations that it recorded. */
import { setImmediate as nextTurn } from 'node:timers/promises'
import { BANDWIDTH_UNMETERED } from '@warren/protocol'
import { Nft } from '../../ffi/nftables.ts'
import { hasCode } from '../../ffi/system-call.ts'
import { netnsPath, SLOT_TABLE } from '../names.ts'
import type { Destination, RefusedDestination, SlotReport, Usage } from '../netd-protocol.ts'
import type { Kernel } from './kernel.ts'
import { readObjects } from './netlink/nft-objects.ts'
import { REFUSED_SECONDS } from './nft/slot-table.ts'

export type Counts = {
  usedBytes: number
  ingressBytes: number
  /** The kernel's count, which includes dropped packets; undefined when the slot is unmetered. */
  quota: { limitBytes: number; usedBytes: number } | undefined
}

export function readSlot(kernel: Kernel, slot: number): SlotReport {
  return kernel.host.enter(netnsPath(kernel.instance, slot), () => {
    using nft = new Nft()
    return {
      usage: renderUsage(readCounts()),
      refused: ['refused', 'refused_other'].flatMap((set) => readSet(nft, set).map(parseRefused)),
      flows: readSet(nft, 'flows').map(parseDestination),
    }
  })
}

/** Lets other requests run between two slots, because a thousand slots take a while. */
export async function readUsage(kernel: Kernel, slots: readonly number[]): Promise<{ slot: number; usage: Usage }[]> {
  const found: { slot: number; usage: Usage }[] = []
  for (const slot of slots) {
    try {
      found.push({ slot, usage: kernel.host.enter(netnsPath(kernel.instance, slot), readCurrentUsage) })
    } catch (error) {
      if (!hasCode(error, 'ENOENT')) throw error
    }
    await nextTurn()
  }
  return found
}

/** In the slot's namespace. */
const readCurrentUsage = (): Usage => renderUsage(readCounts())

/** In the slot's namespace. */
export function readCounts(): Counts {
  const objects = readObjects(SLOT_TABLE)
  const counters = objects.filter((one) => one.kind === 'counter')
  const bytesOf = (name: string) => counters.find((one) => one.name === name)?.bytes ?? 0
  const quota = objects.find((one) => one.kind === 'quota')
  return {
    usedBytes: bytesOf('out'),
    ingressBytes: bytesOf('in'),
    quota: quota === undefined ? undefined : { limitBytes: quota.limitBytes, usedBytes: quota.consumedBytes },
  }
}

const renderUsage = ({ usedBytes, ingressBytes, quota }: Counts): Usage => ({
  quotaBytes: quota?.limitBytes ?? BANDWIDTH_UNMETERED,
  usedBytes,
  ingressBytes,
  capped: quota !== undefined && quota.usedBytes >= quota.limitBytes,
})

type KeyPart = string | number
type Element = { val: { concat: KeyPart[] }; counter: { packets: number }; expires: number }

function readSet(nft: Nft, name: string): Element[] {
  const [found] = nft.list(`set ip ${SLOT_TABLE} ${name}`)
  const { elem = [] } = (found?.set ?? {}) as { elem?: { elem: Element }[] }
  return elem.map((one) => one.elem)
}

function parseDestination({ val, counter }: Element): Destination {
  const [address, protocol, port] = val.concat
  return {
    address: String(address),
    protocol: String(protocol),
    ...(port === undefined ? {} : { port: Number(port) }),
    packets: counter.packets,
  }
}

const parseRefused = (element: Element): RefusedDestination => ({
  ...parseDestination(element),
  agoSeconds: Math.max(0, REFUSED_SECONDS - element.expires),
})
