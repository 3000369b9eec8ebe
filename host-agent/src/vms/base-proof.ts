/** A base is used only after a clone of it has answered, run a command and become somebody. */
import { mkdir, rm } from 'node:fs/promises'
import path from 'node:path'
import { Undo } from '@warren/kit/undo'
import type { Deps } from '../deps.ts'
import { runInGuest } from '../guest/exec.ts'
import type { Base } from './base.ts'
import { startClone, wakeGuest } from './clone.ts'

const PROOF_LIMIT_MS = 20_000

export async function proveBase(deps: Deps, base: Base): Promise<void> {
  const signal = AbortSignal.any([AbortSignal.timeout(PROOF_LIMIT_MS), deps.stopping])
  const undo = new Undo()
  const home = path.join(base.folder, 'proof')
  try {
    await mkdir(home, { mode: 0o700 })
    undo.add('proof', () => rm(home, { recursive: true, force: true }))
    const slot = await deps.network.slots.take()
    undo.add('slot', () => deps.network.slots.release(slot))
    const clone = await startClone(
      deps,
      {
        id: `proof-${base.key}`,
        base,
        home,
        slot,
        uid: deps.uidOf(slot),
        diskMib: base.diskMib,
        cgroups: [],
        lasting: false,
      },
      undo,
      signal,
    )
    await wakeGuest(clone.channel, { hostname: 'proof' }, signal)
    const code = await runInGuest(
      clone.channel.session,
      { cmd: '/bin/sh', args: ['-c', 'test "$(hostname)" = proof || test "$(cat /etc/hostname)" = proof'] },
      signal,
    )
    if (code !== 0) throw new Error('a clone of the base does not know its own name')
  } finally {
    await undo.run(deps.log)
  }
}
