/**
 * Running a program without root's powers.
 *
 * As root, `unshare -U` puts it into a user namespace of its own, where it is uid 65534 and has no capability over
 * anything outside. The kernel still sees root as the owner of its files, so no account, chown or world-readable
 * directory is needed. PostgreSQL insists on this (it refuses uid 0); the control plane simply needs no more.
 * An ordinary user runs the program as it is.
 */
import { execFile } from 'node:child_process'
import { promisify } from 'node:util'

const run = promisify(execFile)

export function unprivileged(command: string, args: string[], uid = process.getuid?.() ?? 0): [string, string[]] {
  if (uid !== 0) return [command, args]
  return ['unshare', ['--user', '--map-user=65534', '--map-group=65534', '--', command, ...args]]
}

/** Does this machine let us? Some containers do not, and PostgreSQL's own words about it help nobody. */
export async function checkUnprivileged(): Promise<void> {
  const [command, args] = unprivileged('true', [])
  try {
    await run(command, args)
  } catch (error) {
    const { stderr, message } = error as Error & { stderr?: string }
    throw new Error(
      `this machine does not let root start a program without root's powers (${stderr?.trim() || message}). ` +
        'Allow user namespaces (sysctl user.max_user_namespaces=15000; a container needs the right to make them), ' +
        'or start Warren as an ordinary user.',
    )
  }
}

/**
 * The kernel sends it `signal` when the thread that started it ends, however that happens: for programs that know
 * nothing of us. It goes inside `unprivileged`, because entering a user namespace forgets it.
 */
export function endsWithParent(signal: NodeJS.Signals, command: string, args: string[]): [string, string[]] {
  return ['setpriv', ['--pdeathsig', signal.replace('SIG', ''), '--', command, ...args]]
}
