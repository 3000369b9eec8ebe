/**
 * The users of Warren's own services. Each data directory has sixteen ids in a row, and each service one of them, which is
 * its user id and its group id. No account of the machine has it, and none needs to be created.
 */

export const IDS_PER_DATA_DIR = 16

/** Offsets in the block of a data directory. They are on disk as owners of files, so they never change. */
const OFFSETS = {
  postgres: 0,
  'control-plane': 1,
  'egress-proxy': 2,
  gateway: 3,
  'development-chain': 4,
  'signing-proxy': 5,
  migrations: 6,
} as const

export type ServiceName = keyof typeof OFFSETS

const DATABASE_CLIENTS: readonly ServiceName[] = ['control-plane', 'gateway', 'migrations']
/** Group of the services that connect to the embedded PostgreSQL. No process has it as a user id. */
const DATABASE_CLIENTS_OFFSET = 8

export type ServiceUser = { service: ServiceName; uid: number; gid: number; groups: readonly number[] }

/** `first` is the first id of the data directory's block. */
export function serviceUser(first: number, service: ServiceName): ServiceUser {
  const id = first + OFFSETS[service]
  const groups = DATABASE_CLIENTS.includes(service) ? [databaseClientsGroup(first)] : []
  return { service, uid: id, gid: id, groups }
}

export const databaseClientsGroup = (first: number): number => first + DATABASE_CLIENTS_OFFSET

/** As /etc/passwd and PostgreSQL name it. */
export const accountName = (service: ServiceName): string => `warren-${service}`

export const SERVICE_NAMES = Object.keys(OFFSETS) as ServiceName[]
