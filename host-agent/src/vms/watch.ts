/** A body that runs is listened to, and missed when it dies. */
import type { Deps } from '../deps.ts'
import { listenToSignals } from '../guest/listen-to-signals.ts'
import { releaseVmm, type Vmm } from '../vmm/vmm.ts'
import { saveCounts } from './counts.ts'
import type { Entry } from './entries.ts'
import { saveFlows } from './flows.ts'

export function watch(deps: Deps, entry: Entry, body: Vmm): void {
  entry.body = body
  const quiet = new AbortController()
  entry.quiet = quiet
  void listenToSignals(
    () => body.channel(),
    async (signal) => {
      entry.record.signal = signal
      await deps.registry.write(entry.record)
    },
    quiet.signal,
  )
  void body.qmp.closed.then(() => quiet.abort())
  void body.untilDead(deps).then((reason) => (body.ending ? undefined : markDead(deps, entry, body, reason)))
}

/** Its process is ended for certain before it counts as dead: its disk may be started from then. */
async function markDead(deps: Deps, entry: Entry, body: Vmm, reason: string): Promise<void> {
  const { record } = entry
  deps.log.warn({ sandbox: record.id, reason }, 'a sandbox died')
  // Nothing answers them any more, and the address may be somebody else's soon.
  for (const connection of entry.connections) connection.destroy()
  try {
    await saveCounts(deps, record, body.record)
    await saveFlows(deps, record, body.record)
    await releaseVmm(deps, body.record, body)
    delete entry.revision
    if (entry.body !== body) return
    delete entry.body
    Object.assign(record, { state: 'dead', reason })
    await deps.registry.write(record)
  } catch (error) {
    deps.log.error({ err: error, sandbox: record.id }, 'the end of a sandbox could not be seen to')
  }
}
