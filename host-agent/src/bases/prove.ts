/** A base is used only after a clone of it has answered, run a command and become somebody. */
import path from 'node:path'
import { Undo } from '@warren/kit/undo'
import type { Deps } from '../deps.ts'
import { runInGuest } from '../guest/run-in-guest.ts'
import { applyIdentity } from '../vmm/apply-identity.ts'
import { startVmm } from '../vmm/start.ts'
import type { Base } from './base.ts'

const PROOF_LIMIT_MS = 20_000

export async function proveBase(deps: Deps, base: Base): Promise<void> {
  const signal = AbortSignal.any([AbortSignal.timeout(PROOF_LIMIT_MS), deps.stopping])
  const undo = new Undo()
  try {
    const home = path.join(base.folder, 'proof')
    const plan = { id: `proof-${base.key}`, home, base, layers: [], diskMib: base.diskMib, lasting: false }
    const body = await startVmm(deps, plan, undo, signal)
    await body.resumeCpus()
    await applyIdentity(body, { hostname: 'proof' }, { born: true }, signal)
    const { session } = await body.channel(signal)
    const script = 'test "$(hostname)" = proof || test "$(cat /etc/hostname)" = proof'
    const code = await runInGuest(session, { cmd: '/bin/sh', args: ['-c', script] }, signal)
    if (code !== 0) throw new Error('a clone of the base does not know its own name')
  } finally {
    await undo.run(deps.log)
  }
}
