/** `warren install` and `uninstall`: a link named `warren` in a folder on the PATH, which leads to this checkout. */
import { lstat, mkdir, readlink, rm, symlink } from 'node:fs/promises'
import { homedir } from 'node:os'
import path from 'node:path'
import { ROOT, resolvePath } from './config.ts'

const LAUNCHER = path.join(ROOT, 'warren')

export async function installCommand(folder?: string): Promise<void> {
  const link = findLink(folder)
  const found = await findTarget(link)
  if (found === LAUNCHER) return print(`${link} leads to this checkout already.`)
  if (found !== undefined) {
    throw new Error(`${link} exists and is not a link to this checkout (${describe(found)}); remove it first`)
  }
  await mkdir(path.dirname(link), { recursive: true })
  await symlink(LAUNCHER, link)
  print(`Linked ${link} to ${LAUNCHER}.`)
  const isOnPath = (process.env.PATH ?? '').split(':').includes(path.dirname(link))
  if (!isOnPath)
    print(`${path.dirname(link)} is not on the PATH of this shell: export PATH=${path.dirname(link)}:$PATH`)
}

export async function uninstallCommand(folder?: string): Promise<void> {
  const link = findLink(folder)
  const found = await findTarget(link)
  if (found === undefined) return print(`There is no ${link}.`)
  if (found !== LAUNCHER) throw new Error(`${link} is not a link to this checkout (${describe(found)}); it is kept`)
  await rm(link)
  print(`Removed ${link}.`)
}

function findLink(folder: string | undefined): string {
  const standard = process.getuid?.() === 0 ? '/usr/local/bin' : path.join(homedir(), '.local/bin')
  return path.join(folder === undefined ? standard : resolvePath(folder), 'warren')
}

const NOT_A_LINK = ''

/** Where the link leads to, NOT_A_LINK for another file, undefined if there is none. */
async function findTarget(link: string): Promise<string | undefined> {
  const stats = await lstat(link).catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT') return undefined
    throw error
  })
  if (stats === undefined) return undefined
  return stats.isSymbolicLink() ? path.resolve(path.dirname(link), await readlink(link)) : NOT_A_LINK
}

const describe = (found: string): string => (found === NOT_A_LINK ? 'a file' : `a link to ${found}`)

function print(text: string): void {
  process.stdout.write(`${text}\n`)
}
