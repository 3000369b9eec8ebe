/** Clients of the hosts: one per address, and the address of each host as last read from the database. */
import type { Database } from '../db/connect.ts'
import { createHostClient, type HostClient } from './client.ts'
import { HostError } from './host-error.ts'

export type Hosts = {
  clientAt(address: string): HostClient
  /** The host of a sandbox; throws HostError `unreachable` if its address is unknown. */
  get(hostId: string | null): Promise<HostClient>
  /** Called at each heartbeat: a restarted agent may have another address. */
  setAddress(hostId: string, address: string): void
  /** The id of the host at an address, once it has answered. */
  findId(address: string): string | undefined
  close(): void
}

export function createHosts(database: Database): Hosts {
  const clients = new Map<string, HostClient>()
  const addresses = new Map<string, string>()

  function clientAt(address: string): HostClient {
    const known = clients.get(address)
    if (known) return known
    const client = createHostClient(address)
    clients.set(address, client)
    return client
  }

  async function addressOf(hostId: string): Promise<string | undefined> {
    const row = await database.db.selectFrom('hosts').select('address').where('id', '=', hostId).executeTakeFirst()
    if (!row || row.address === '') return undefined
    addresses.set(hostId, row.address)
    return row.address
  }

  return {
    clientAt,
    async get(hostId) {
      const address = hostId === null ? undefined : (addresses.get(hostId) ?? (await addressOf(hostId)))
      if (address === undefined) throw new HostError('unreachable', `the address of host ${hostId} is unknown`)
      return clientAt(address)
    },
    setAddress: (hostId, address) => void addresses.set(hostId, address),
    findId: (address) => [...addresses].find(([, known]) => known === address)?.[0],
    close() {
      for (const client of clients.values()) client.close()
    },
  }
}
