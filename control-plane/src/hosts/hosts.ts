/** The way to each host: one client an address, and the address of each host as the database last told it. */
import type { Database } from '../db/connect.ts'
import { createHostClient, type HostClient } from './client.ts'
import { HostError } from './failure.ts'

export type Hosts = {
  at(address: string): HostClient
  /** The host that holds a sandbox; throws HostError `unreachable` for one that nobody knows. */
  get(hostId: string | null): Promise<HostClient>
  /** Said by each heartbeat: an agent may come back at another address. */
  learn(hostId: string, address: string): void
  close(): void
}

export function createHosts(database: Database): Hosts {
  const clients = new Map<string, HostClient>()
  const addresses = new Map<string, string>()

  function at(address: string): HostClient {
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
    at,
    async get(hostId) {
      const address = hostId === null ? undefined : (addresses.get(hostId) ?? (await addressOf(hostId)))
      if (address === undefined) throw new HostError('unreachable', `there is no way to the host ${hostId}`)
      return at(address)
    },
    learn: (hostId, address) => void addresses.set(hostId, address),
    close() {
      for (const client of clients.values()) client.close()
    },
  }
}
