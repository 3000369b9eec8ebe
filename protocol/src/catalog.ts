/** Shapes, root filesystems, hosts, the current user and the health checks. */
import { type Static, Type } from 'typebox'
import { UserId } from './ids.ts'

export const ShapeView = Type.Object({
  id: Type.String(),
  vcpu: Type.Integer(),
  mem_mib: Type.Integer(),
  default_disk_mib: Type.Integer({ description: 'Disk size of a sandbox that does not request one.' }),
  cpu_quota_pct: Type.Optional(
    Type.Integer({
      description:
        'CPU limit in percent of one core, present only when it is below the vCPU count: 25 is a quarter of a core.',
    }),
  ),
})
export type ShapeView = Static<typeof ShapeView>

export type Shape = ShapeView & {
  /** CPU limit of the whole VM in percent of one core: 25 for a quarter, 400 for four cores. */
  cpu_quota_pct: number
}

/** The quota is left out for whole cores: clients that look for whole cores skip shapes with a quota. */
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

/** Smallest first. */
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

/** Of a sandbox, in percent of one core. A shape that is no longer in the catalog had no quota. */
export const findCpuQuotaPct = ({ shape, vcpu }: { shape: string; vcpu: number }): number =>
  findShape(shape)?.cpu_quota_pct ?? vcpu * 100

export const RootfsEntry = Type.Object({
  name: Type.String(),
  description: Type.Optional(Type.String()),
  deprecated: Type.Optional(Type.Boolean()),
  successor: Type.Optional(Type.String({ description: 'Name of the root filesystem that replaces a deprecated one.' })),
})
export const RootfsCatalog = Type.Object({
  rootfs: Type.Array(Type.String(), { description: 'Names that can be used to create a sandbox.' }),
  default: Type.String({ description: 'Used when a create request names none.' }),
  entries: Type.Optional(Type.Array(RootfsEntry)),
})
export type RootfsCatalog = Static<typeof RootfsCatalog>

export const HOST_STATUSES = ['active', 'draining', 'dead'] as const
export type HostStatus = (typeof HOST_STATUSES)[number]
export const HostView = Type.Object({
  id: Type.String({ description: 'IP address of the host.' }),
  status: Type.Enum(HOST_STATUSES),
  free_mib: Type.Integer({ description: 'Memory available for new sandboxes.' }),
  vm_count: Type.Integer(),
  rootfses: Type.Optional(Type.Array(Type.String())),
})
export type HostView = Static<typeof HostView>

export const Whoami = Type.Object({
  user_id: UserId,
  stats: Type.Object({
    running: Type.Integer(),
    paused: Type.Integer(),
    other: Type.Integer({ description: 'Sandboxes in any other status that is not final.' }),
    total: Type.Integer({ description: 'All sandboxes that the user has ever owned.' }),
  }),
})
export type Whoami = Static<typeof Whoami>

export const Healthz = Type.Object({ up: Type.Literal(true) })
export const Readyz = Type.Object({ ready: Type.Literal(true) })
