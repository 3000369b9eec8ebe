/**
 * Command lines for running a program without root privileges.
 *
 * As root, `unshare --user` starts it in a separate user namespace, where it has uid 65534 and no capabilities outside.
 * For the kernel root still owns its files, so no account, chown or world-readable directory is needed. PostgreSQL
 * requires this, because it refuses to run as uid 0; the control plane simply needs no more. A program that an ordinary
 * user starts is not wrapped.
 */
import { execFile } from 'node:child_process'
import { promisify } from 'node:util'

const run = promisify(execFile)

export function asUnprivileged(command: string, args: string[], uid = process.getuid?.() ?? 0): [string, string[]] {
  if (uid !== 0) return [command, args]
  return ['unshare', ['--user', '--map-user=65534', '--map-group=65534', '--', command, ...args]]
}

/** Throws if this machine does not allow it, as in some containers. The error of PostgreSQL would not explain why. */
export async function checkUserNamespaces(): Promise<void> {
  const [command, args] = asUnprivileged('true', [])
  try {
    await run(command, args)
  } catch (error) {
    const { stderr, message } = error as Error & { stderr?: string }
    throw new Error(
      `cannot start a program in a user namespace (${stderr?.trim() || message}). ` +
        'Allow user namespaces (sysctl user.max_user_namespaces=15000; a container needs permission to create them), ' +
        'or start Warren as an ordinary user.',
    )
  }
}

/**
 * The kernel sends `signal` to the program when the thread that started it ends, for any reason. Apply it before
 * asUnprivileged, because entering a user namespace clears the setting.
 */
export function withParentDeathSignal(signal: NodeJS.Signals, command: string, args: string[]): [string, string[]] {
  return ['setpriv', ['--pdeathsig', signal.replace('SIG', ''), '--', command, ...args]]
}
