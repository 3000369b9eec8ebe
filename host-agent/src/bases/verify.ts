/** Verifies a new base before its first use: a clone of it must respond, accept an identity and run a command. */
import path from 'node:path'
import type { Deps } from '../deps.ts'
import { runInGuest } from '../guest/run-in-guest.ts'
import { Undo } from '../undo.ts'
import { applyIdentity } from '../vmm/apply-identity.ts'
import { startVmm, type VmmPlan } from '../vmm/start.ts'
import type { Base } from './base.ts'

const VERIFY_LIMIT_MS = 20_000

export async function verifyBase(deps: Deps, base: Base): Promise<void> {
  const signal = AbortSignal.any([AbortSignal.timeout(VERIFY_LIMIT_MS), deps.stopping])
  const undo = new Undo()
  try {
    const plan: VmmPlan = {
      id: `verify-${base.key}`,
      folder: path.join(base.folder, 'verify'),
      base,
      start: { from: 'base' },
      layers: [],
      diskMib: base.diskMib,
      outlivesHostAgent: false,
    }
    const vmm = await startVmm(deps, plan, undo, signal)
    undo.add('abort listener', vmm.qmp.closeOnAbort(deps.stopping))
    await vmm.resumeCpus()
    await applyIdentity(vmm, { hostname: 'verify' }, { isNew: true }, signal)
    const { session } = await vmm.channel(signal)
    const script = 'test "$(hostname)" = verify || test "$(cat /etc/hostname)" = verify'
    const code = await runInGuest(session, { cmd: '/bin/sh', args: ['-c', script] }, signal)
    if (code !== 0) throw new Error('a clone of the base does not have the hostname it was given')
  } finally {
    await undo.run(deps.log)
  }
}
