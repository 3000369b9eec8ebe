/**
 * The limits of each plan, and of one user: those of the plan, except where an operator has set another value
 * (`warren admin user set-limit`). `local` is the plan of the local user and `internal` that of services of the installation
 * (service-users.ts). Neither has caps or is charged, and `internal` has no rate limit either.
 */
import { findShape } from '@warren/protocol'

export type Cap = { concurrent: number; per_day: number }

export type Plan = {
  sandboxes: Cap
  networks: Cap
  disks: Cap
  templates: Cap
  max_disk_mib: number
  /** A shape must fit both this and `max_mem_mib`. */
  max_vcpu: number
  max_mem_mib: number
  webhook_endpoints: number
  /** Builds of templates that run or wait at the same time. */
  template_builds: number
}

const GIB = 1024
const NO_CAP: Cap = { concurrent: Number.POSITIVE_INFINITY, per_day: Number.POSITIVE_INFINITY }
const cap = (concurrent: number, per_day: number): Cap => ({ concurrent, per_day })

const UNCAPPED = {
  sandboxes: NO_CAP,
  networks: NO_CAP,
  disks: NO_CAP,
  templates: NO_CAP,
  max_disk_mib: 60 * GIB,
  max_vcpu: 8,
  max_mem_mib: 16 * GIB,
  webhook_endpoints: Number.POSITIVE_INFINITY,
  template_builds: 2,
} as const satisfies Plan

export const PLANS = {
  local: UNCAPPED,
  internal: { ...UNCAPPED, template_builds: Number.POSITIVE_INFINITY },
  free: {
    sandboxes: cap(1, 10),
    networks: cap(1, 10),
    disks: cap(0, 0),
    templates: cap(0, 0),
    max_disk_mib: 10 * GIB,
    max_vcpu: 1,
    max_mem_mib: 1 * GIB,
    webhook_endpoints: 2,
    template_builds: 2,
  },
  beginner: {
    sandboxes: cap(5, 50),
    networks: cap(5, 50),
    disks: cap(5, 50),
    templates: cap(5, 50),
    max_disk_mib: 30 * GIB,
    max_vcpu: 4,
    max_mem_mib: 4 * GIB,
    webhook_endpoints: 4,
    template_builds: 2,
  },
  pro: {
    sandboxes: cap(20, 200),
    networks: cap(20, 200),
    disks: cap(20, 200),
    templates: cap(20, 200),
    max_disk_mib: 50 * GIB,
    max_vcpu: 8,
    max_mem_mib: 8 * GIB,
    webhook_endpoints: 6,
    template_builds: 2,
  },
  enterprise: {
    sandboxes: cap(30, 300),
    networks: cap(30, 300),
    disks: cap(30, 300),
    templates: cap(30, 300),
    max_disk_mib: 60 * GIB,
    max_vcpu: 8,
    max_mem_mib: 16 * GIB,
    webhook_endpoints: Number.POSITIVE_INFINITY,
    template_builds: 2,
  },
} as const satisfies Record<string, Plan>

export type PlanName = keyof typeof PLANS
export const PLAN_NAMES = Object.keys(PLANS) as PlanName[]
export const isPlanName = (text: string): text is PlanName => Object.hasOwn(PLANS, text)

/** As `is_charged` in the database. */
export const isCharged = (plan: PlanName): boolean => plan !== 'local' && plan !== 'internal'

/** In the order in which they are listed. */
const LIMIT_OF_PLAN = {
  sandboxes: (plan) => plan.sandboxes.concurrent,
  sandboxes_per_day: (plan) => plan.sandboxes.per_day,
  networks: (plan) => plan.networks.concurrent,
  networks_per_day: (plan) => plan.networks.per_day,
  disks: (plan) => plan.disks.concurrent,
  disks_per_day: (plan) => plan.disks.per_day,
  templates: (plan) => plan.templates.concurrent,
  templates_per_day: (plan) => plan.templates.per_day,
  template_builds: (plan) => plan.template_builds,
  webhook_endpoints: (plan) => plan.webhook_endpoints,
  max_disk_mib: (plan) => plan.max_disk_mib,
  max_vcpu: (plan) => plan.max_vcpu,
  max_mem_mib: (plan) => plan.max_mem_mib,
} as const satisfies Record<string, (plan: Plan) => number>

export type LimitName = keyof typeof LIMIT_OF_PLAN
export const LIMIT_NAMES = Object.keys(LIMIT_OF_PLAN) as LimitName[]
/** What a user may have. Infinity means no limit. */
export type Limits = Record<LimitName, number>

/** As stored with the user. JSON has no Infinity, so null means no limit. */
export type LimitOverrides = Partial<Record<LimitName, number | null>>

export function limitsOf(user: { plan: PlanName; limit_overrides: LimitOverrides }): Limits {
  const limitOf = (name: LimitName): number => {
    const override = user.limit_overrides[name]
    if (override === undefined) return LIMIT_OF_PLAN[name](PLANS[user.plan])
    return override ?? Number.POSITIVE_INFINITY
  }
  return Object.fromEntries(LIMIT_NAMES.map((name) => [name, limitOf(name)])) as Limits
}

export const planLimits = (plan: PlanName): Limits => limitsOf({ plan, limit_overrides: {} })

export function allowsShape(limits: Limits, shapeId: string): boolean {
  const shape = findShape(shapeId)
  return shape !== undefined && shape.vcpu <= limits.max_vcpu && shape.mem_mib <= limits.max_mem_mib
}
