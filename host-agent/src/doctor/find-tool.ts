/** Finds tools of the host and the command that installs them. */
import { accessSync, constants, statSync } from 'node:fs'
import { homedir } from 'node:os'
import { delimiter, isAbsolute, join } from 'node:path'
import type { Machine } from './check.ts'

/** On Debian, mke2fs, nft and ip are in these folders, which are not on the PATH of an ordinary user. */
const SYSTEM_FOLDERS = ['/usr/local/sbin', '/usr/sbin', '/sbin']

export function findTool({ env }: Machine, name: string): string | undefined {
  return toolFolders(env)
    .map((folder) => join(folder, name))
    .find(isExecutable)
}

/** For running a tool: PATH has the folders that findTool searches, and LC_ALL makes messages parseable. */
export const toolEnv = ({ env }: Machine): NodeJS.ProcessEnv => ({
  ...env,
  PATH: toolFolders(env).join(delimiter),
  LC_ALL: 'C',
})

/** The command that installs a Debian package, as advice for the user. */
export function installCommand(machine: Machine, debianPackage: string): string {
  if (findTool(machine, 'apt-get') === undefined) {
    return `install ${debianPackage} (the name on Debian) with the package manager of this system`
  }
  return `${asRoot(machine)}apt-get install -y ${debianPackage}`
}

export const asRoot = ({ isRoot }: Machine): string => (isRoot ? '' : 'sudo ')

function toolFolders(env: NodeJS.ProcessEnv): string[] {
  const cargoFolder = join(env.CARGO_HOME || join(env.HOME || homedir(), '.cargo'), 'bin')
  return [...(env.PATH ?? '').split(delimiter).filter(isAbsolute), ...SYSTEM_FOLDERS, cargoFolder]
}

function isExecutable(path: string): boolean {
  try {
    accessSync(path, constants.X_OK)
    return statSync(path).isFile()
  } catch {
    // Absent or not accessible: try the next folder.
    return false
  }
}
