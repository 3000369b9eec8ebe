/** Checks, before anything is started, that services of root can be confined on this machine. */
import { execFile } from 'node:child_process'
import { existsSync } from 'node:fs'
import { promisify } from 'node:util'
import { claimServiceIds } from './claim-ids.ts'
import { confine, JAIL_BINARY } from './confine.ts'
import { serviceUser } from './services.ts'

const run = promisify(execFile)

export async function checkJail(dataDir: string): Promise<void> {
  const ids = await claimServiceIds(dataDir)
  if (ids === undefined) return
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
