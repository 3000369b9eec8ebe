/**
 * Prepares the start of a service: as root in a jail, with its folders handed over to its user, and with copies of the
 * files that its settings name. Started by an ordinary user, a service is not confined.
 */
import { lstat, readdir, rm } from 'node:fs/promises'
import path from 'node:path'
import { claimServiceIds } from '@warren/kit/confine/claim-ids'
import { checkReadable, listCode } from '@warren/kit/confine/code'
import { type Confinement, confine, SYSTEM_PATH } from '@warren/kit/confine/confine'
import { endProcesses, handOver } from '@warren/kit/confine/hand-over'
import { MIRRORED_SYSTEM_FILES, openMirror } from '@warren/kit/confine/mirror'
import { type ServiceName, serviceUser } from '@warren/kit/confine/services'
import { CRASH_POINTS_VARIABLE } from '@warren/kit/crash-point'
import { type InstanceConfig, ROOT } from './config.ts'
import { checkOwnFolders } from './own-folders.ts'

const COMPILED = 'compiled'
/** Node has a dozen threads, and the development chain about one per core. A service that forks without end ends here. */
const PROCESSES_MAX = 512

export type ServicePlan = {
  service: ServiceName
  /** Relative to the repository. */
  program: string
  /** Those that the program imports. */
  workspaces: readonly string[]
  env: NodeJS.ProcessEnv
  /** Its own folders. The first one is its home. */
  own: readonly [string, ...string[]]
  /** Folders of others, such as those of sockets. */
  read: readonly string[]
  /** Files that settings name, and files in folders of other services. */
  files: readonly string[]
  filesOfServices?: readonly string[]
}

/** `release` removes the copies when the service has ended. */
export type Prepared = {
  command: string
  args: string[]
  env: NodeJS.ProcessEnv
  isConfined: boolean
  release(): Promise<void>
}

export async function prepareService(config: InstanceConfig, plan: ServicePlan): Promise<Prepared> {
  const program = path.join(ROOT, plan.program)
  const ids = await claimServiceIds(config.dataDir)
  const unconfined = { command: process.execPath, args: [program], env: plan.env, isConfined: false }
  if (ids === undefined) return { ...unconfined, release: async () => {} }
  const user = serviceUser(ids, plan.service)
  checkReadable(plan.workspaces)
  await checkOwnFolders(config, plan.service, plan.own)
  // A predecessor that was killed must not change the folders meanwhile.
  await endProcesses(user)
  const [home] = plan.own
  await pruneCompiledCode(path.join(home, COMPILED))
  await handOver(user, plan.own)
  const mirror = await openMirror(user, path.join(config.dataDir, 'mirror', plan.service), {
    files: [...MIRRORED_SYSTEM_FILES, ...plan.files.filter((file) => !isInside(file, plan.own))],
    ofServices: plan.filesOfServices ?? [],
  })
  const confinement: Confinement = {
    user,
    read: [...listCode(plan.workspaces), ...plan.read],
    // Tests kill and hold services with files in a folder.
    write: [...plan.own, ...(plan.env[CRASH_POINTS_VARIABLE] ? [plan.env[CRASH_POINTS_VARIABLE]] : [])],
    mirror,
    network: true,
    processesMax: PROCESSES_MAX,
    deathSignal: 'TERM',
  }
  const [command, args] = confine(confinement, process.execPath, [program])
  const env = { ...plan.env, PATH: SYSTEM_PATH, HOME: home, NODE_COMPILE_CACHE: path.join(home, COMPILED) }
  return { command, args, env, isConfined: true, release: () => mirror.close() }
}

/** Removes what other versions of Node stored. The service owns the folder, but no process of it runs. */
async function pruneCompiledCode(folder: string): Promise<void> {
  // Through a link that it has put there, root would remove files of others.
  if (!(await lstat(folder).catch(() => undefined))?.isDirectory()) return
  const current = `${process.version}-${process.arch}-`
  for (const name of await readdir(folder)) {
    if (!name.startsWith(current)) await rm(path.join(folder, name), { recursive: true, force: true })
  }
}

const isInside = (file: string, folders: readonly string[]): boolean =>
  folders.some((folder) => file.startsWith(`${folder}/`))
