/**
 * The execution contract: what happens inside the guest for a step. The program that drives a build carries these out in
 * order, as root, and stops at the first that fails.
 *
 * exec        `files` are written first and deleted afterwards, whatever happens. The program gets exactly `argv` and
 *             `env`, nothing is inherited; only HOME is added from the user's entry in /etc/passwd if `env` lacks it. It
 *             starts in `cwd`, which is created if it is missing. Standard input is empty, there is no terminal, and the
 *             umask is 0022. The step succeeded if the exit code is 0. What it left running is killed.
 * makeFolder  creates the folder and its missing parents with this mode and owner. One that exists is left alone.
 *
 * `user` and `group` are names or numbers, resolved in the guest, because a step may have added them. Without a group, a
 * known user has the groups of /etc/passwd and /etc/group, and an unknown number has group 0. A name that does not exist
 * fails the step.
 */
import type { RunStep, WorkdirStep } from './step.ts'

export type GuestAction =
  | {
      kind: 'exec'
      argv: string[]
      env: Record<string, string>
      cwd: string
      owner: Owner
      files: { path: string; mode: number; content: string }[]
    }
  | { kind: 'makeFolder'; path: string; mode: number; owner: Owner }

export type Owner = { user: string; group: string | undefined }

const EXECUTABLE = 0o755
const FOLDER = 0o755

export function guestActionOf(step: RunStep | WorkdirStep): GuestAction {
  const owner = parseOwner(step.user)
  if (step.kind === 'workdir') return { kind: 'makeFolder', path: step.workdir, mode: FOLDER, owner }
  const files = step.script === undefined ? [] : [{ ...step.script, mode: EXECUTABLE }]
  return { kind: 'exec', argv: step.argv, env: step.env, cwd: step.workdir, owner, files }
}

/** `name`, `name:group`, `1000:1000`; nothing means root. */
function parseOwner(text: string): Owner {
  const colon = text.indexOf(':')
  const [user, group] = colon < 0 ? [text, ''] : [text.slice(0, colon), text.slice(colon + 1)]
  return { user: user || 'root', group: group || undefined }
}
