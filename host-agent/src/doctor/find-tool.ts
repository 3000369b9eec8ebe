/** Tools of the host: where they are, and how to get them. */
import { accessSync, constants, statSync } from 'node:fs'
import { homedir } from 'node:os'
import { delimiter, isAbsolute, join } from 'node:path'
import type { Machine } from './check.ts'

/** The PATH of an ordinary user lacks these on Debian, yet mke2fs, nft and ip are there. */
const SYSTEM_FOLDERS = ['/usr/local/sbin', '/usr/sbin', '/sbin']

export function findTool({ env }: Machine, name: string): string | undefined {
  return toolFolders(env)
    .map((folder) => join(folder, name))
    .find(isExecutable)
}

/** For running what findTool found: the same folders, and messages that can be parsed. */
export const toolEnv = ({ env }: Machine): NodeJS.ProcessEnv => ({
  ...env,
  PATH: toolFolders(env).join(delimiter),
  LC_ALL: 'C',
})

/** The command that brings a Debian package, for whoever reads it. */
export function installCommand(machine: Machine, debianPackage: string): string {
  if (findTool(machine, 'apt-get') === undefined) {
    return `install ${debianPackage} (its name on Debian) with the package manager of this system`
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
    // Not there, or not for us: the next folder may have it.
    return false
  }
}
