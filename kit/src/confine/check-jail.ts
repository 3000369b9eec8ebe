/** Checks, before anything is started, that services of root can be confined on this machine. */
import { execFile } from 'node:child_process'
import { existsSync, readFileSync } from 'node:fs'
import { promisify } from 'node:util'
import { readConfig } from '../config.ts'
import { SERVICE_UID } from '../shared-settings.ts'
import { checkMapped } from './check-ids.ts'
import { claimServiceIds } from './claim-ids.ts'
import { confine, JAIL_BINARY } from './confine.ts'
import { serviceUser } from './services.ts'

const run = promisify(execFile)

/** Throws if a service of the data directory could not be started. */
export async function checkJail(dataDir: string): Promise<void> {
  const ids = await claimServiceIds(dataDir)
  if (ids !== undefined) await tryJail(ids)
}

/** The same without a data directory, for `warren doctor`. */
export async function checkMachine(env: NodeJS.ProcessEnv): Promise<void> {
  const { start } = readConfig({ start: SERVICE_UID }, env)
  checkMapped(start, {
    uid: readFileSync('/proc/self/uid_map', 'utf8'),
    gid: readFileSync('/proc/self/gid_map', 'utf8'),
  })
  await tryJail(start)
}

async function tryJail(ids: number): Promise<void> {
  if (!existsSync(JAIL_BINARY)) throw new Error(`${JAIL_BINARY} is missing; run sh tools/setup.sh, which builds it`)
  const user = serviceUser(ids, 'control-plane')
  const confinement = { user, read: [], write: [], network: false, deathSignal: 'KILL' } as const
  try {
    await run(...confine(confinement, '/usr/bin/true', []))
  } catch (error) {
    const { stderr, message } = error as Error & { stderr?: string }
    throw new Error(
      `cannot confine a service (${stderr?.trim() || message}). ` +
        'In a container, allow root to make namespaces and mounts (CAP_SYS_ADMIN), or start Warren as an ordinary user.',
    )
  }
}
