/** The ingress to a server in a sandbox that is a process of this machine, which is as fast with it as without it. */
import { GUEST_GATEWAY } from '../../../host-agent/src/net/names.ts'
import { withNative } from '../native/instance.ts'
import type { Measurement, Row, Run } from '../row.ts'
import { measureRate, measureTrips, startServer, type Target } from './ingress.ts'

const BASELINE = "the sandbox's own address"

export const nativeIngressTripRow: Row = {
  name: 'native-ingress-trip',
  what: 'one request after the other through the ingress to a sandbox that is a process, against direct requests',
  unit: 'ms',
  baseline: BASELINE,
  target: { ratio: '<=', value: 1, plus: 1.5 },
  measure: (run) => withServer(run, (ours, baseline) => measureTrips(run, ours, baseline)),
  comparison: { whyNot: 'it sends the same requests as ingress-trip; compare that' },
}

export const nativeIngressRateRow: Row = {
  name: 'native-ingress-rate',
  what: 'the same on many connections at once',
  unit: 'req/s',
  baseline: BASELINE,
  target: { ratio: '>=', value: 0.6 },
  measure: (run) => withServer(run, (ours, baseline) => measureRate(run, ours, baseline)),
  comparison: { whyNot: 'it sends the same requests as ingress-rate; compare that' },
}

function withServer(run: Run, measure: (ours: Target, baseline: Target) => Promise<Measurement>): Promise<Measurement> {
  return withNative(
    run,
    async (api, id) => {
      const { ip } = (await api.get(id)) as unknown as { ip: string }
      // In a virtual machine the guest agent does this.
      const route = `ip route add default via ${GUEST_GATEWAY} dev eth0 onlink`
      await api.sh(id, `ip addr add ${ip}/32 dev eth0 && ${route}`)
      const { ingress, direct } = await startServer(run, api, id)
      return measure(ingress, direct)
    },
    { ingress_enabled: true },
  )
}
