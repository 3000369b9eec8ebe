/** The versions that `--compare` starts: a commit, set up in a temporary folder, and this checkout. */
import { ROOT } from '../child.ts'
import type { Versions } from '../cli.ts'
import { startInstance } from '../vm/instance.ts'
import { createCheckout, describeWorkingTree, findCommit } from './checkout.ts'

export const versions: Versions = {
  findCommit,
  async prepare(run, commit) {
    if (process.getuid?.() !== 0) throw new Error('virtual machines need root')
    const labels = { old: commit, new: await describeWorkingTree() }
    const roots = { old: await createCheckout(run, commit), new: ROOT }
    return {
      labels,
      startSide: (sideRun, side, env = {}) => startInstance(sideRun, { root: roots[side], env, label: side }),
    }
  },
}
