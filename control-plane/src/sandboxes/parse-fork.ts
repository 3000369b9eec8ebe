/** Parses the body of a fork. Every error here is a 400. */
import { badField } from '@warren/kit/failure'
import {
  checkEnvs,
  checkSshPublicKeys,
  type Envs,
  mergeSshPublicKeys,
  parseEgressRules,
  type SandboxForkBody,
} from '@warren/protocol'

/** A field that is undefined is inherited from the source. */
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
  // A child starts with the default quota. Any value, even 0, is rejected.
  if (body.bandwidth_quota_bytes != null) throw badField({ bandwidth_quota_bytes: 'cannot be set on a fork' })
  const egress = body.egress === undefined ? undefined : (body.egress ?? [])
  const rules = parseEgressRules(egress ?? [])
  if (typeof rules === 'string') throw badField({ egress: rules })
  const envsError = checkEnvs(envs ?? {})
  if (envsError !== undefined) throw badField({ envs: envsError })
  const keysError = checkSshPublicKeys(ssh_pubkeys ?? [])
  if (keysError !== undefined) throw badField({ ssh_pubkeys: keysError })
  return {
    startPaused: body.start_paused ?? false,
    live: body.live ?? false,
    count: body.count ?? 1,
    sshPubkeys: ssh_pubkeys ? mergeSshPublicKeys([], ssh_pubkeys) : undefined,
    egress,
    ingressEnabled: body.ingress_enabled ?? undefined,
    networks: (body.networks ?? []).map(({ id }) => id),
    // An empty map means that the variables are inherited.
    envs: envs && Object.keys(envs).length > 0 ? envs : undefined,
  }
}
