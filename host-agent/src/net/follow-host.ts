/** What the programs of this host learn from each check of its network (guard-host.ts). */
import type { Log } from '@warren/kit/log'
import type { S3Proxy } from '../disks/s3-proxy-client.ts'
import type { EgressProxy } from './egress-proxy-client.ts'
import type { MachineNetwork } from './machine.ts'
import type { HostCheck } from './netd-protocol.ts'

type FollowDeps = {
  log: Pick<Log, 'warn'>
  changeMachine: (network: MachineNetwork) => Promise<void>
  egressProxy: Pick<EgressProxy, 'setUpstreams'>
  s3Proxy: Pick<S3Proxy, 'refreshMachine'> | undefined
}

export async function followHost(deps: FollowDeps, { machine, upstreams }: HostCheck): Promise<void> {
  const { log, changeMachine, egressProxy, s3Proxy } = deps
  await changeMachine(machine)
  await egressProxy.setUpstreams(upstreams)
  // Not awaited: a proxy that does not answer would hold up the next check, which restores the network of all sandboxes.
  void s3Proxy
    ?.refreshMachine()
    .catch((error) => log.warn({ err: error }, 'failed to pass changes of the machine to the S3 proxy'))
}
