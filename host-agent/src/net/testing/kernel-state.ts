/** Reads and changes nftables rules and reads tracked flows in tests, so that they need neither the `nft` nor the `conntrack` command. */
import { HostNamespace } from '../../ffi/network-namespace.ts'
import { Nft } from '../../ffi/nftables.ts'
import { netnsPath } from '../names.ts'
import { type Flow, findFlowsFrom, openConntrack } from '../netd/netlink/conntrack.ts'

/** As printed by `nft list ruleset`. */
export function listRuleset(): string {
  using nft = new Nft()
  return nft.run('list ruleset')
}

/** The same without the elements of sets, which packets change. */
export function listRules(): string {
  using nft = new Nft()
  return nft.listRules('ruleset')
}

export const listSlotRuleset = (instance: string, slot: number): string =>
  new HostNamespace().enter(netnsPath(instance, slot), listRuleset)

export function listFlows(ip: string): Flow[] {
  using conntrack = openConntrack()
  return findFlowsFrom(conntrack, ip)
}

/** As another program on the machine. */
export function runNft(command: string): void {
  using nft = new Nft()
  nft.run(command)
}

/** Deletes the table whenever it exists, every millisecond. `stop` returns how often that was. */
export function keepTableDeleted(table: string): { stop: () => number } {
  const nft = new Nft()
  let count = 0
  const timer = setInterval(() => {
    if (!nft.run('list tables ip').includes(table)) return
    nft.run(`delete table ip ${table}`)
    count++
  }, 1)
  return {
    stop() {
      clearInterval(timer)
      nft[Symbol.dispose]()
      return count
    },
  }
}
