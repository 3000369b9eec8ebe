/**
 * How messages spell the `warren` command, so that what they name works when it is pasted: `warren` where
 * `./warren install` has linked this checkout onto the PATH, otherwise `./warren`.
 */
import { realpathSync } from 'node:fs'
import path from 'node:path'

const LAUNCHER = path.resolve(import.meta.dirname, '../../warren')

export function warrenCommand(env: NodeJS.ProcessEnv = process.env): string {
  // Folders that are relative to the current directory do not help in another one.
  const folders = (env.PATH ?? '').split(':').filter((folder) => path.isAbsolute(folder))
  const found = folders.map((folder) => findFile(path.join(folder, 'warren')))
  return found.find((file) => file !== undefined) === LAUNCHER ? 'warren' : './warren'
}

/** Changes the spelling of a text that begins with the command, such as `warren images list`. */
export const spellCommand = (text: string): string => text.replace(/^warren\b/, warrenCommand())

/** Where the links of a path lead to, or undefined if there is no such file. */
function findFile(file: string): string | undefined {
  try {
    return realpathSync(file)
  } catch {
    return undefined
  }
}
