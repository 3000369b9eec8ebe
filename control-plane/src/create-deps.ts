/** Builds `Deps`: once in main.ts and once per test. There is no other dependency injection. */
import { createOutboundGuard } from '@warren/kit/outbound/guard'
import { createTokenStreams } from './access-tokens/end-revoked.ts'
import { createAuditLog } from './audit/log.ts'
import type { Deps } from './deps.ts'
import { createActivity } from './guest/activity.ts'
import { createHosts } from './hosts/hosts.ts'
import { createIngressAddress } from './ingress/address.ts'
import { createLoaders } from './loaders.ts'

type Given = Pick<Deps, 'config' | 'log' | 'database' | 'credentials' | 'metrics' | 'processId' | 'secrets'> & {
  now?: () => Date
}

export function createDeps(given: Given): Deps {
  const { config, database, log } = given
  return {
    ...given,
    db: database.db,
    loaders: createLoaders(database),
    tokenStreams: createTokenStreams(database, log),
    hosts: createHosts(database),
    activity: createActivity(),
    ingressAddress: createIngressAddress(config.ingressDomain),
    audit: createAuditLog(database, log),
    webhookTargets: createOutboundGuard(config.webhookPrivateCidrs),
    diskTargets: createOutboundGuard(config.diskPrivateCidrs),
    now: given.now ?? (() => new Date()),
  }
}
