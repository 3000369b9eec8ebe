/**
 * Parses the body of a create. Every error here is a 400 that names the field. The name (409), caps (429), credit (402)
 * and capacity (503) are checked afterwards, in this order.
 */

import { badField, Failure } from '@warren/kit/failure'
import { spellCommand } from '@warren/kit/warren-command'
import {
  checkEnvs,
  checkSandboxName,
  checkSshPublicKeys,
  type Envs,
  findShape,
  mergeSshPublicKeys,
  parseEgressRules,
  type SandboxCreateBody,
  type Shape,
  templateImageName,
} from '@warren/protocol'
import type { Deps } from '../deps.ts'
import { checkAttachment, type NewAttachment, overlap, parseAttachment } from '../disks/parse-attachment.ts'
import type { CallerUser } from '../http/caller.ts'
import { findReadyTemplate } from '../templates/queries.ts'
import { allowsShape } from '../users/plans.ts'

/** An image of the catalog, which any host may have, or a template, whose image is on one host. */
export type RootfsSource = {
  image: string
  template?: { id: string; hostId: string; minDiskMib: number }
}

export type CreateRequest = {
  shape: Shape
  /** As the caller gave it. */
  rootfs: string
  /** Where the root file system comes from. */
  source: RootfsSource
  name: string | undefined
  diskMib: number
  sshPubkeys: string[]
  envs: Envs
  ingressEnabled: boolean
  egress: string[]
  /** Ids or names. They are resolved in the transaction that inserts the sandbox. */
  networks: string[]
  disks: NewAttachment[]
  autoPauseAfterSeconds: number | null
  autoResume: boolean
  hostId: string | undefined
  region: string
}

const REGIONS = ['eu', 'us']

export async function parseCreate(deps: Deps, user: CallerUser, body: SandboxCreateBody): Promise<CreateRequest> {
  const shape = parseShape(user, body.shape)
  const rootfs = body.rootfs || deps.config.defaultRootfs
  const source = await getSource(deps, user, rootfs)
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
    source,
    name,
    diskMib: await parseDisk(deps, user, body.disk_mib || shape.default_disk_mib, rootfs, source),
    sshPubkeys: mergeSshPublicKeys([], sshPubkeys),
    envs,
    ingressEnabled: body.ingress_enabled ?? false,
    egress,
    networks: (body.networks ?? []).map(({ id }) => id),
    disks: (body.disks ?? []).map(parseAttachment),
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

/** The catalog takes precedence over a template of the same name. */
async function getSource(deps: Deps, user: CallerUser, name: string): Promise<RootfsSource> {
  const row = await deps.db.selectFrom('rootfs').selectAll().where('name', '=', name).executeTakeFirst()
  if (!row) return getTemplateSource(deps, user, name)
  if (row.enabled) return { image: row.name }
  const hint = row.enable_with === null ? '' : `; an operator enables it with: ${spellCommand(row.enable_with)}`
  throw badField({ rootfs: `rootfs ${name} is disabled${hint}` })
}

async function getTemplateSource(deps: Deps, user: CallerUser, name: string): Promise<RootfsSource> {
  const template = await findReadyTemplate(deps.db, user.id, name)
  if (!template?.host_id) throw unknownRootfs(name)
  const { id, host_id: hostId, min_disk_mib: minDiskMib } = template
  return { image: templateImageName(id), template: { id, hostId, minDiskMib } }
}

export const unknownRootfs = (name: string) => badField({ rootfs: `unknown rootfs or template: ${name.slice(0, 100)}` })

/** Any number of MiB that holds the root file system, up to the maximum of the plan. */
async function parseDisk(
  deps: Deps,
  { plan, limits }: CallerUser,
  diskMib: number,
  rootfs: string,
  { image, template }: RootfsSource,
): Promise<number> {
  const max = limits.max_disk_mib
  if (diskMib > max) throw new Failure('plan_limit', { disk_mib: `plan ${plan} allows at most ${max}` })
  const min = template?.minDiskMib ?? (await findMinDisk(deps, image))
  if (diskMib < min) throw badField({ disk_mib: `must be at least ${min} to hold ${rootfs}` })
  return diskMib
}

async function findMinDisk(deps: Deps, name: string): Promise<number> {
  const hosts = await deps.db.selectFrom('hosts').select('images').where('status', '<>', 'dead').execute()
  const images = hosts.flatMap((host) => host.images.filter((image) => image.name === name))
  return Math.max(1, ...images.map((image) => image.min_disk_mib ?? 1))
}

function checkDisks({ disks }: SandboxCreateBody): string | undefined {
  const paths: string[] = []
  for (const disk of disks ?? []) {
    const fault = checkAttachment(disk)
    if (fault) return fault.join(' ')
    const { mountPath } = parseAttachment(disk)
    const other = paths.find((path) => overlap(path, mountPath))
    if (other === mountPath) return `mount_path ${mountPath} is used twice`
    if (other !== undefined) return `mount_path ${mountPath} overlaps ${other}`
    paths.push(mountPath)
  }
  return undefined
}
