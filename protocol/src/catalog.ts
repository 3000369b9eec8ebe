/** Shapes, root file systems, hosts, identity, health (spec 2.3 to 2.5, 4.10). */
import { type Static, Type } from 'typebox'
import { UserId } from './ids.ts'

export const ShapeView = Type.Object({
  id: Type.String(),
  vcpu: Type.Integer(),
  mem_mib: Type.Integer(),
  default_disk_mib: Type.Integer(),
  cpu_quota_pct: Type.Optional(
    Type.Integer({ description: 'Only where less than the whole vCPU: 25 is a quarter of one core.' }),
  ),
})
export type ShapeView = Static<typeof ShapeView>

export type Shape = ShapeView & {
  /** Share of one core the whole VM may use, in percent: 25 for a quarter, 400 for four cores. */
  cpu_quota_pct: number
}

/** Clients pass over the shapes that have a quota when they look for whole cores. */
export function viewShape({ cpu_quota_pct, ...shape }: Shape): ShapeView {
  return cpu_quota_pct < shape.vcpu * 100 ? { ...shape, cpu_quota_pct } : shape
}

const DEFAULT_DISK_MIB = 10_240

const shape = (id: string, vcpu: number, mem_mib: number, cpu_quota_pct = vcpu * 100): Shape => ({
  id,
  vcpu,
  mem_mib,
  default_disk_mib: DEFAULT_DISK_MIB,
  cpu_quota_pct,
})

/** Smallest first. The two 8-vCPU shapes are ours: the plan table of the spec needs them. */
export const SHAPES: readonly Shape[] = [
  shape('s-0.25vcpu-512mb', 1, 512, 25),
  shape('s-0.5vcpu-1gb', 1, 1024, 50),
  shape('s-1vcpu-256mb', 1, 256),
  shape('s-1vcpu-1gb', 1, 1024),
  shape('s-1vcpu-2gb', 1, 2048),
  shape('s-2vcpu-2gb', 2, 2048),
  shape('s-2vcpu-4gb', 2, 4096),
  shape('s-4vcpu-4gb', 4, 4096),
  shape('s-4vcpu-8gb', 4, 8192),
  shape('s-8vcpu-8gb', 8, 8192),
  shape('s-8vcpu-16gb', 8, 16_384),
]

export const findShape = (id: string): Shape | undefined => SHAPES.find((one) => one.id === id)

export const RootfsEntry = Type.Object({
  name: Type.String(),
  description: Type.Optional(Type.String()),
  deprecated: Type.Optional(Type.Boolean()),
  successor: Type.Optional(Type.String()),
})
export const RootfsCatalog = Type.Object({
  rootfs: Type.Array(Type.String(), { description: 'Names a create may use.' }),
  default: Type.String({ description: 'Used when a create names none.' }),
  entries: Type.Optional(Type.Array(RootfsEntry)),
})
export type RootfsCatalog = Static<typeof RootfsCatalog>

export const HOST_STATUSES = ['active', 'draining', 'dead'] as const
export type HostStatus = (typeof HOST_STATUSES)[number]
export const HostView = Type.Object({
  id: Type.String({ description: 'An IP address.' }),
  status: Type.Enum(HOST_STATUSES),
  free_mib: Type.Integer(),
  vm_count: Type.Integer(),
  rootfses: Type.Optional(Type.Array(Type.String())),
})
export type HostView = Static<typeof HostView>

export const Whoami = Type.Object({
  user_id: UserId,
  stats: Type.Object({
    running: Type.Integer(),
    paused: Type.Integer(),
    other: Type.Integer({ description: 'Not running, not paused, not ended.' }),
    total: Type.Integer({ description: 'Every sandbox ever owned.' }),
  }),
})
export type Whoami = Static<typeof Whoami>

export const Healthz = Type.Object({ up: Type.Literal(true) })
export const Readyz = Type.Object({ ready: Type.Literal(true) })
