/**
 * Parses the body of a create. Every error here is a 400 that names the field. The name (409), caps (429), credit (402)
 * and capacity (503) are checked afterwards, in this order.
 */

import { badField, Failure } from '@warren/kit/failure'
import { spellCommand } from '@warren/kit/warren-command'
import {
  checkEnvs,
  checkMountPath,
  checkSandboxName,
  checkSshPublicKeys,
  type Envs,
  findShape,
  mergeSshPublicKeys,
  normalisePath,
  parseEgressRules,
  type SandboxCreateBody,
  type Shape,
} from '@warren/protocol'
import type { Deps } from '../deps.ts'
import type { CallerUser } from '../http/caller.ts'
import { allowsShape } from '../users/plans.ts'

export type CreateRequest = {
  shape: Shape
  rootfs: string
  name: string | undefined
  diskMib: number
  sshPubkeys: string[]
  envs: Envs
  ingressEnabled: boolean
  egress: string[]
  /** Ids or names. They are resolved in the transaction that inserts the sandbox. */
  networks: string[]
  autoPauseAfterSeconds: number | null
  autoResume: boolean
  hostId: string | undefined
  region: string
}

const REGIONS = ['eu', 'us']

export async function parseCreate(deps: Deps, user: CallerUser, body: SandboxCreateBody): Promise<CreateRequest> {
  const shape = parseShape(user, body.shape)
  const rootfs = await getRootfs(deps, body.rootfs || deps.config.defaultRootfs)
  const name = body.name || undefined
  const envs = body.envs ?? {}
  const egress = body.egress ?? []
  const sshPubkeys = body.ssh_pubkeys ?? []
  const rules = parseEgressRules(egress)
  checkFields({
    name: name === undefined ? undefined : checkSandboxName(name),
    envs: checkEnvs(envs),
    ssh_pubkeys: checkSshPublicKeys(sshPubkeys),
    egress: typeof rules === 'string' ? rules : undefined,
    region: !body.region || REGIONS.includes(body.region) ? undefined : `must be one of ${REGIONS.join(', ')}`,
    disks: checkDisks(body),
  })
  return {
    shape,
    rootfs,
    name,
    diskMib: await parseDisk(deps, user, body.disk_mib || shape.default_disk_mib, rootfs),
    sshPubkeys: mergeSshPublicKeys([], sshPubkeys),
    envs,
    ingressEnabled: body.ingress_enabled ?? false,
    egress,
    networks: (body.networks ?? []).map(({ id }) => id),
    autoPauseAfterSeconds: body.auto_pause_after_seconds ?? null,
    autoResume: body.auto_resume ?? false,
    hostId: body.host_id || undefined,
    region: body.region || deps.config.region,
  }
}

function checkFields(errors: Record<string, string | undefined>): void {
  for (const [field, error] of Object.entries(errors)) if (error !== undefined) throw badField({ [field]: error })
}

function parseShape(user: CallerUser, id: string): Shape {
  const shape = findShape(id)
  if (!shape) throw badField({ shape: `unknown shape: ${id.slice(0, 100)}, see GET /v1/shapes` })
  if (!allowsShape(user.limits, id)) {
    throw new Failure('plan_limit', { shape: `${id} is larger than plan ${user.plan} allows` })
  }
  return shape
}

async function getRootfs(deps: Deps, name: string): Promise<string> {
  const row = await deps.db.selectFrom('rootfs').selectAll().where('name', '=', name).executeTakeFirst()
  if (!row) throw badField({ rootfs: `unknown rootfs or template: ${name.slice(0, 100)}` })
  if (row.enabled) return row.name
  const hint = row.enable_with === null ? '' : `; an operator enables it with: ${spellCommand(row.enable_with)}`
  throw badField({ rootfs: `rootfs ${name} is disabled${hint}` })
}

/** Any number of MiB that holds the root file system, up to the maximum of the plan. */
async function parseDisk(deps: Deps, { plan, limits }: CallerUser, diskMib: number, rootfs: string): Promise<number> {
  const max = limits.max_disk_mib
  if (diskMib > max) throw new Failure('plan_limit', { disk_mib: `plan ${plan} allows at most ${max}` })
  const min = await findMinDisk(deps, rootfs)
  if (diskMib < min) throw badField({ disk_mib: `must be at least ${min} to hold ${rootfs}` })
  return diskMib
}

async function findMinDisk(deps: Deps, rootfs: string): Promise<number> {
  const hosts = await deps.db.selectFrom('hosts').select('images').where('status', '<>', 'dead').execute()
  const images = hosts.flatMap((host) => host.images.filter((image) => image.name === rootfs))
  return Math.max(1, ...images.map((image) => image.min_disk_mib ?? 1))
}

/** No disk can be registered, so a disk that a request names does not exist. */
function checkDisks({ disks }: SandboxCreateBody): string | undefined {
  const paths = new Set<string>()
  for (const { mount_path } of disks ?? []) {
    const error = checkMountPath(mount_path)
    if (error) return `mount_path ${error}`
    const path = normalisePath(mount_path)
    if (paths.has(path)) return `mount_path ${path} is used twice`
    paths.add(path)
  }
  const first = disks?.[0]
  return first && `disk not found: ${first.disk_id.slice(0, 100)}`
}
