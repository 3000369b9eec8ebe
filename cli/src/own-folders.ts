/**
 * Checks folders before root gives them to a service, with everything in them. Settings name some of them, and what a folder
 * contained belongs to the service from then on: the owners before are lost. An ordinary user gives nothing away.
 */
import { readdir, realpath, stat } from 'node:fs/promises'
import path from 'node:path'
import { claimServiceIds } from '@warren/kit/confine/claim-ids'
import { type ServiceName, serviceUser } from '@warren/kit/confine/services'
import { CONTROL_PLANE_FOLDER, type InstanceConfig, ROOT } from './config.ts'

type Owner = Exclude<ServiceName, 'postgres' | 'egress-proxy' | 'signing-proxy'>

/** Entries of the data directory that belong to these services. */
const OF_SERVICES: Record<Owner, readonly string[]> = {
  'control-plane': [CONTROL_PLANE_FOLDER, 'ingress'],
  gateway: ['gateway'],
  'development-chain': ['development-chain'],
  migrations: ['migrations'],
}
/** Those of PostgreSQL, the host agent and the launcher. */
const OF_OTHERS = [
  ...[
    'postgres',
    'postgres-socket',
    'mirror',
    'log',
    'host-socket',
    'vms',
    'bodies',
    'snapshots',
    'bases',
    'templates',
  ],
  ...['builds', 'build-cache', 'metrics'],
]
/** Folders of the machine that many programs share. What is inside them can be given away, but not they themselves. */
const OF_MACHINE = [
  ...[
    '/bin',
    '/boot',
    '/dev',
    '/dev/shm',
    '/etc',
    '/home',
    '/lib',
    '/lib64',
    '/media',
    '/mnt',
    '/opt',
    '/proc',
    '/root',
  ],
  ...['/run', '/sbin', '/srv', '/sys', '/tmp', '/usr', '/usr/local', '/var', '/var/lib', '/var/log', '/var/cache'],
  '/var/tmp',
]
const SETTINGS: Record<Owner, string> = {
  'control-plane': 'WARREN_INGRESS_CA_DIR',
  gateway: 'WARREN_GATEWAY_DATA_DIR and WARREN_GATEWAY_APPS_CA_DIR',
  'development-chain': 'WARREN_DATA_DIR',
  migrations: 'WARREN_DATA_DIR',
}

/** Throws if one of the folders is, contains, or is inside of something that is not the service's. */
export async function checkOwnFolders(
  config: InstanceConfig,
  service: ServiceName,
  folders: readonly string[],
): Promise<void> {
  const owner = service as Owner // Others have no plan (confined-service.ts).
  const dataDir = await resolveReal(config.dataDir)
  const foreign = await Promise.all(listForeign(config, owner).map(resolveReal))
  for (const folder of folders) {
    const real = await resolveReal(folder)
    const other =
      [dataDir, ROOT, ...OF_MACHINE].find((place) => isIn(place, real)) ??
      foreign.find((place) => isIn(place, real) || isIn(real, place)) ??
      (isIn(real, ROOT) && !isIn(real, dataDir) ? ROOT : undefined)
    if (other === undefined) continue
    throw new Error(
      `${folder} cannot be given to ${owner}, because ${other} is not for it alone; ` +
        `check ${SETTINGS[owner]}, which must name a folder with nothing else`,
    )
  }
}

function listForeign({ dataDir, caDir, gatewayDir, chainDir }: InstanceConfig, owner: Owner): string[] {
  const owners = Object.keys(OF_SERVICES) as Owner[]
  const names = owners.filter((one) => one !== owner).flatMap((one) => OF_SERVICES[one])
  return [
    ...[...names, ...OF_OTHERS].map((name) => path.join(dataDir, name)),
    ...(owner === 'control-plane' ? [] : [caDir]),
    ...(owner === 'gateway' ? [] : [gatewayDir]),
    ...(owner === 'development-chain' ? [] : [chainDir]),
  ]
}

const isIn = (entry: string, folder: string): boolean =>
  entry === folder || entry.startsWith(folder === '/' ? '/' : `${folder}/`)

/** Folders may be links to another volume, and may not exist yet. */
async function resolveReal(folder: string): Promise<string> {
  try {
    return await realpath(folder)
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw error
    return path.join(await resolveReal(path.dirname(folder)), path.basename(folder))
  }
}

export const AUTHORITY_FILES = ['ca.pem', 'ca.key']
/** `chain` is one of earlier versions. */
export const GATEWAY_FILES = ['artifacts', 'ca', 'chain', 'compiled', 'lost+found', 'secrets.key', 'uploads']

/**
 * Before a folder that a setting names is given to the service for the first time: throws if it has other files than those
 * of the service.
 */
export async function checkDedicated(
  config: InstanceConfig,
  service: ServiceName,
  folder: string,
  { setting, files }: { setting: string; files: readonly string[] },
): Promise<void> {
  const ids = await claimServiceIds(config.dataDir)
  if (ids === undefined) return
  const owner = (await stat(folder).catch(() => undefined))?.uid
  if (owner === serviceUser(ids, service).uid) return
  const names = await readdir(folder).catch(() => [])
  const other = names.find((name) => !files.includes(name))
  if (other === undefined) return
  throw new Error(
    `${setting} names ${folder}, which has other files, such as ${other}; it must be a folder for this purpose alone`,
  )
}
