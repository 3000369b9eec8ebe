/** What a fork asks for, checked as far as it can be without taking anything: every fault here is a 400. */
import { badField } from '@warren/kit/failure'
import {
  checkEnvs,
  checkSshPublicKeys,
  type Envs,
  mergeSshPublicKeys,
  parseEgressRules,
  type SandboxForkBody,
} from '@warren/protocol'

/** Undefined: as the source has it. */
export type ForkRequest = {
  startPaused: boolean
  live: boolean
  count: number
  sshPubkeys: string[] | undefined
  egress: string[] | undefined
  ingressEnabled: boolean | undefined
  /** Ids or names. */
  networks: string[]
  envs: Envs | undefined
}

export function parseFork(body: SandboxForkBody): ForkRequest {
  const { envs, ssh_pubkeys } = body
  // A child has its own allowance: asking for one, even for none, is a misunderstanding (spec 4.2).
  if (body.bandwidth_quota_bytes != null) throw badField({ bandwidth_quota_bytes: 'cannot be set on a fork' })
  const egress = body.egress === undefined ? undefined : (body.egress ?? [])
  const rules = parseEgressRules(egress ?? [])
  if (typeof rules === 'string') throw badField({ egress: rules })
  const wrongEnvs = checkEnvs(envs ?? {})
  if (wrongEnvs !== undefined) throw badField({ envs: wrongEnvs })
  const wrongKeys = checkSshPublicKeys(ssh_pubkeys ?? [])
  if (wrongKeys !== undefined) throw badField({ ssh_pubkeys: wrongKeys })
  return {
    startPaused: body.start_paused ?? false,
    live: body.live ?? false,
    count: body.count ?? 1,
    sshPubkeys: ssh_pubkeys ? mergeSshPublicKeys([], ssh_pubkeys) : undefined,
    egress,
    ingressEnabled: body.ingress_enabled ?? undefined,
    networks: (body.networks ?? []).map(({ id }) => id),
    // An empty map is no map (spec 4.2).
    envs: envs && Object.keys(envs).length > 0 ? envs : undefined,
  }
}
