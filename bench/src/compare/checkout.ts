/**
 * Another version of this repository, ready to be started: a git worktree in a temporary folder with its npm packages
 * and its guest agent, set up by the script of that version. Removed when the run ends, after Ctrl-C too.
 */
import { execFile } from 'node:child_process'
import { cp, mkdtemp, readFile, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { promisify } from 'node:util'
import { ROOT } from '../child.ts'
import type { Run } from '../row.ts'

const run = promisify(execFile)

/** Installing npm packages and building the guest agent on a slow machine. */
const SETUP_LIMIT_MS = 15 * 60_000

/** The full hash of a commit, or undefined if there is no such commit. */
export async function findCommit(name: string): Promise<string | undefined> {
  // A name that begins with a dash would be an option of git.
  if (name.startsWith('-')) return undefined
  const found = await git('rev-parse', '--verify', '--quiet', '--end-of-options', `${name}^{commit}`).catch(() => '')
  return found === '' ? undefined : found
}

/** What the current checkout is called in the table. */
export async function describeWorkingTree(): Promise<string> {
  const [commit, changes] = await Promise.all([git('rev-parse', '--short', 'HEAD'), git('status', '--porcelain')])
  return changes === '' ? commit : `${commit} with uncommitted changes`
}

/** Returns the folder of the checkout. */
export async function createCheckout(benchRun: Run, commit: string): Promise<string> {
  const folder = await mkdtemp(path.join(tmpdir(), 'warren-compare-'))
  benchRun.defer(() => rm(folder, { recursive: true, force: true }))
  const root = path.join(folder, 'warren')
  benchRun.report(`  checking out ${commit}`)
  benchRun.defer(() => git('worktree', 'remove', '--force', root).then(() => {}))
  await git('worktree', 'add', '--quiet', '--detach', root, commit)

  if (await haveSamePackages(root)) await copyPackages(root)
  benchRun.report('  setting it up: npm packages and guest agent')
  await run('sh', ['tools/setup.sh', '--quiet'], { cwd: root, timeout: SETUP_LIMIT_MS, signal: benchRun.signal })
  return root
}

/** With the same lock file the packages installed here are those that npm would install there. */
async function haveSamePackages(root: string): Promise<boolean> {
  const [ours, theirs] = await Promise.all(
    [ROOT, root].map((checkout) => readFile(path.join(checkout, 'package-lock.json'))),
  )
  return ours!.equals(theirs!) // Two files were read.
}

/** Faster than installing them. The links between workspaces are relative, so they lead to the new checkout. */
const copyPackages = (root: string): Promise<void> =>
  cp(path.join(ROOT, 'node_modules'), path.join(root, 'node_modules'), { recursive: true, verbatimSymlinks: true })

async function git(...args: string[]): Promise<string> {
  const { stdout } = await run('git', args, { cwd: ROOT })
  return stdout.trim()
}
