/** The code that a service runs, which it can read and not change. Data directories inside the checkout are not part of it. */
import { existsSync, readdirSync, statSync } from 'node:fs'
import path from 'node:path'
import { REPOSITORY } from './confine.ts'

const PACKAGES = path.join(REPOSITORY, 'node_modules')

/** `workspaces` are those that the service imports, its own included. */
export function listCode(workspaces: readonly string[]): string[] {
  const folders = workspaces.flatMap((name) => ['src', 'package.json', 'node_modules'].map((part) => `${name}/${part}`))
  return [
    path.join(REPOSITORY, 'package.json'),
    PACKAGES,
    ...folders.map((folder) => path.join(REPOSITORY, folder)),
  ].filter((file) => existsSync(file))
}

/**
 * Throws if other users cannot read the code, as in a checkout that was made with umask 077. Of the packages, which are
 * tens of thousands of files, only the file is looked at that the set-up writes last.
 */
export function checkReadable(workspaces: readonly string[], root = REPOSITORY): void {
  const sources = workspaces.map((name) => path.join(root, name, 'src'))
  const packages = path.join(root, 'node_modules')
  const files = [...sources, ...sources.flatMap(listFiles), packages, path.join(packages, '.warren-installed')]
  const closed = files.find(isClosed)
  if (closed === undefined) return
  throw new Error(
    `${closed} can be read by its owner only, but Warren's services run as separate users. ` +
      `Make the checkout readable: chmod -R go+rX ${root}/node_modules ${root}/*/src`,
  )
}

const listFiles = (folder: string): string[] =>
  readdirSync(folder, { recursive: true }).map((name) => path.join(folder, name as string))

function isClosed(file: string): boolean {
  const found = statSync(file, { throwIfNoEntry: false })
  if (found === undefined) return false
  const needed = found.isDirectory() ? 0o005 : 0o004
  return (found.mode & needed) !== needed
}
