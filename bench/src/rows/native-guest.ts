/** Processes, tunnels and files of a sandbox that is a process of this machine, against its guest agent without Warren. */
import { type BareAgent, startBareAgent } from '../native/bare-agent.ts'
import { withNative } from '../native/instance.ts'
import type { Measurement, Row, Run } from '../row.ts'
import type { Api } from '../vm/api.ts'
import { apiAccess, bareAccess, type GuestAccess } from '../vm/guest-access.ts'
import { type Direction, measureTransfers } from './files.ts'
import { measureEcho, measureStart, withTerminal } from './processes.ts'
import {
  measureTunnelRates,
  measureTunnelTrips,
  pullThroughTunnel,
  pushThroughTunnel,
  startTunnelServers,
} from './tunnels.ts'

const BASELINE = "the guest agent's socket"

export const nativeProcessStartRow: Row = guestRow(
  { name: 'native-process-start', what: 'POST processes and connect until the first output', unit: 'ms' },
  measureStart,
)

export const nativeEchoRow: Row = guestRow(
  { name: 'native-pty-echo', what: 'POST input of one byte until its echo arrives from a terminal', unit: 'ms' },
  (run, ours, baseline) => withTerminal(baseline, (pressKey) => measureEcho(run, ours, pressKey)),
)

export const nativeTunnelTripRow: Row = guestRow(
  { name: 'native-tunnel-trip', what: 'a byte through a tunnel and back', unit: 'ms', target: { p50: '<=', value: 1 } },
  withServers(measureTunnelTrips),
)

export const nativeTunnelDownRow: Row = guestRow(
  { name: 'native-tunnel-down', what: 'bytes out of the sandbox through a tunnel', unit: 'MB/s' },
  withServers((run, ours, baseline) => measureTunnelRates(run, ours, baseline, pullThroughTunnel)),
)

export const nativeTunnelUpRow: Row = guestRow(
  { name: 'native-tunnel-up', what: 'bytes into the sandbox through a tunnel', unit: 'MB/s' },
  withServers((run, ours, baseline) => measureTunnelRates(run, ours, baseline, pushThroughTunnel)),
)

export const nativePushRow: Row = fileRow('push', 'PUT files of 64 MiB')
export const nativePullRow: Row = fileRow('pull', 'GET files of 64 MiB')

type Described = Pick<Row, 'name' | 'what' | 'unit' | 'target'>
type MeasureGuests = (run: Run, ours: GuestAccess, baseline: GuestAccess) => Promise<Measurement>

function guestRow(row: Described, measure: MeasureGuests): Row {
  return nativeRow(row, (run, { api, id }, bare) => measure(run, apiAccess(api, id), bareAccess(bare)))
}

function fileRow(direction: Direction, what: string): Row {
  const row: Described = { name: `native-${direction}`, what, unit: 'MB/s', target: { p50: '>=', value: 400 } }
  return nativeRow(row, (run, sandbox, bare) => measureTransfers(run, direction, sandbox, bare))
}

function nativeRow(
  { what, ...row }: Described,
  measure: (run: Run, sandbox: { api: Api; id: string }, bare: BareAgent) => Promise<Measurement>,
): Row {
  return {
    ...row,
    what: `${what}, in a sandbox that is a process, against the same without Warren`,
    baseline: BASELINE,
    measure: (run) =>
      withNative(run, async (api, id) => {
        const bare = await startBareAgent()
        try {
          return await measure(run, { api, id }, bare)
        } finally {
          await bare.stop()
        }
      }),
    comparison: { whyNot: `it sends the same requests as ${row.name.replace('native-', '')}; compare that` },
  }
}

function withServers(measure: MeasureGuests): MeasureGuests {
  return async (run, ours, baseline) => {
    for (const guest of [ours, baseline]) await startTunnelServers(guest)
    return measure(run, ours, baseline)
  }
}
