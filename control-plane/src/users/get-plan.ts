/** The limits of a user, beside what the user has now. Each value is counted as its own cap check counts it. */
import { type CapUse, type PlanView, SHAPES } from '@warren/protocol'
import type { Deps } from '../deps.ts'
import { DISK_CAPS } from '../disks/caps.ts'
import { NETWORK_CAPS } from '../networks/caps.ts'
import { SANDBOX_CAPS } from '../sandboxes/caps.ts'
import { TEMPLATE_BUILD_CAPS, TEMPLATE_CAPS } from '../templates/caps.ts'
import { WEBHOOK_CAPS } from '../webhooks/caps.ts'
import { type CappedKind, type CappedResource, dailyLimit } from './caps.ts'
import { allowsShape, type Limits, limitsOf } from './plans.ts'

const CAPPED_RESOURCES: readonly CappedResource[] = [
  SANDBOX_CAPS,
  NETWORK_CAPS,
  DISK_CAPS,
  WEBHOOK_CAPS,
  TEMPLATE_CAPS,
  TEMPLATE_BUILD_CAPS,
]

export async function getPlan(deps: Deps, userId: string): Promise<PlanView> {
  const user = await deps.db
    .selectFrom('users')
    .select(['id', 'plan', 'limit_overrides'])
    .where('id', '=', userId)
    .executeTakeFirstOrThrow()
  const limits = limitsOf(user)
  const live = (kind: CappedKind) => concurrentUse(deps, userId, limits, kind)
  const daily = (kind: CappedKind) => dailyUse(deps, userId, limits, kind)
  const [sandboxes, networks, disks, templates] = await Promise.all([
    Promise.all([live('sandboxes'), daily('sandboxes')]),
    Promise.all([live('networks'), daily('networks')]),
    Promise.all([live('disks'), daily('disks')]),
    Promise.all([live('templates'), daily('templates')]),
  ])
  const both = ([concurrent, per_day]: [CapUse, CapUse]) => ({ concurrent, per_day })
  return {
    plan: user.plan,
    sandboxes: both(sandboxes),
    networks: both(networks),
    disks: both(disks),
    templates: both(templates),
    template_builds: { concurrent: await live('template_builds') },
    webhook_endpoints: { concurrent: await live('webhook_endpoints') },
    ...finite('max_disk_mib', limits.max_disk_mib),
    ...finite('max_vcpu', limits.max_vcpu),
    ...finite('max_mem_mib', limits.max_mem_mib),
    shapes: SHAPES.filter((shape) => allowsShape(limits, shape.id)).map((shape) => shape.id),
    overrides: Object.keys(user.limit_overrides).sort(),
  }
}

const findResource = (kind: CappedKind) => CAPPED_RESOURCES.find((resource) => resource.kind === kind)

async function concurrentUse({ db }: Deps, userId: string, limits: Limits, kind: CappedKind): Promise<CapUse> {
  const used = (await findResource(kind)?.countLive(db, userId)) ?? 0
  return { ...finite('limit', limits[kind]), used }
}

/** Counts a few more than the limit, because a plan that was lowered may be exceeded. */
async function dailyUse({ db }: Deps, userId: string, limits: Limits, kind: CappedKind): Promise<CapUse> {
  const used = (await findResource(kind)?.countDay?.(db, userId, COUNT_MAX)) ?? 0
  return { ...finite('limit', dailyLimit(limits, kind)), used }
}

const COUNT_MAX = 1_000_000

const finite = <Name extends string>(name: Name, value: number) =>
  (Number.isFinite(value) ? { [name]: value } : {}) as { [key in Name]?: number }
