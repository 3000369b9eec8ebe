import { createHash } from 'node:crypto'

/**
 * The name of the Warren that uses a data directory, which must be an absolute path. Part of the names of its namespaces,
 * interfaces, cgroups and users, so that instances on one machine do not clash.
 */
export const instanceName = (dataDir: string): string => createHash('sha256').update(dataDir).digest('hex').slice(0, 8)
