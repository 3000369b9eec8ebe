/** Where the files of a VMM are. */
import path from 'node:path'
import type { Deps } from '../deps.ts'
import { SOCKETS } from './args.ts'

/** Named `bodies` since the first release; existing data directories have it. */
const VMM_FOLDERS = 'bodies'

export const vmmFoldersOf = (deps: Deps): string => path.join(deps.config.dataDir, VMM_FOLDERS)
export const vmmFolderOf = (deps: Deps, id: string): string => path.join(vmmFoldersOf(deps), id)
/** The only folder that QEMU can write to. */
export const workFolderOf = (deps: Deps, id: string): string => path.join(vmmFolderOf(deps, id), 'work')
export const logFileOf = (deps: Deps, id: string): string => path.join(vmmFolderOf(deps, id), 'qemu.log')
export const socketFolderOf = (deps: Deps, id: string): string => path.join(deps.config.runDir, id)

export const guestSocketsIn = (socketFolder: string) => ({
  agent: path.join(socketFolder, SOCKETS.agent),
  hello: path.join(socketFolder, SOCKETS.hello),
})
