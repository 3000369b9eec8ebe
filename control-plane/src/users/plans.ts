/** The limits of each plan. `local` is the plan of the local user (local.ts) and has no caps. */
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
}

const GIB = 1024
const NO_CAP: Cap = { concurrent: Number.POSITIVE_INFINITY, per_day: Number.POSITIVE_INFINITY }
const cap = (concurrent: number, per_day: number): Cap => ({ concurrent, per_day })

export const PLANS = {
  local: {
    sandboxes: NO_CAP,
    networks: NO_CAP,
    disks: NO_CAP,
    templates: NO_CAP,
    max_disk_mib: 60 * GIB,
    max_vcpu: 8,
    max_mem_mib: 16 * GIB,
    webhook_endpoints: Number.POSITIVE_INFINITY,
  },
  free: {
    sandboxes: cap(1, 10),
    networks: cap(1, 10),
    disks: cap(0, 0),
    templates: cap(0, 0),
    max_disk_mib: 10 * GIB,
    max_vcpu: 1,
    max_mem_mib: 1 * GIB,
    webhook_endpoints: 2,
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
  },
} as const satisfies Record<string, Plan>

export type PlanName = keyof typeof PLANS
export const PLAN_NAMES = Object.keys(PLANS) as PlanName[]
export const isPlanName = (text: string): text is PlanName => Object.hasOwn(PLANS, text)

export function planAllowsShape(plan: PlanName, shapeId: string): boolean {
  const shape = findShape(shapeId)
  return shape !== undefined && shape.vcpu <= PLANS[plan].max_vcpu && shape.mem_mib <= PLANS[plan].max_mem_mib
}
