/**
 * The versions whose data directories this version must open. A release is added here in the commit after it, because it
 * cannot name its own hash. All are ancestors of the present commit, so every full clone has them.
 */
import { spawnSync } from 'node:child_process'
import { ROOT } from './instance.ts'

export type Release = {
  /** In the names of tests. */
  version: string
  commit: string
  /** The block of its sandboxes: outside of those that other tests get, because a restored data directory keeps its block. */
  cidr: string
  /** The address that guests of this version see, if it is not the one that the API shows. */
  mappedAddress?: string
}

export const RELEASES: readonly Release[] = [
  // Not promised to be readable, but the last version whose guests do not have their own address.
  {
    version: 'the last version before 0.2.0',
    commit: 'f3aa9cf977795cbe2c5f5cb3e5a181bd76b0ac89',
    cidr: '100.96.0.0/16',
    mappedAddress: '172.30.0.2',
  },
  { version: 'version 0.2.0', cidr: '100.97.0.0/16', commit: '61837e5467a20c127cd1dc58280fa8a39cb943e7' },
]

/** The reason why a version cannot be tried, or false. With `CI=true` a skip for it is a failure. */
export function cannotCheckOut({ commit }: Release): string | false {
  const { status, stderr } = spawnSync('git', ['cat-file', '-e', `${commit}^{commit}`], { cwd: ROOT, encoding: 'utf8' })
  if (status === 0) return false
  return `${stderr.trim()}; a clone with the whole history has this commit: git fetch --unshallow`
}
