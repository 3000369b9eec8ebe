/** What the plan of a user allows, beside what is used now. */
import { type Static, Type } from 'typebox'

export const CapUse = Type.Object({
  limit: Type.Optional(Type.Integer({ description: 'Absent when there is no limit.' })),
  used: Type.Integer(),
})
export type CapUse = Static<typeof CapUse>

const ConcurrentCap = Type.Object({ concurrent: CapUse })
const DailyCap = Type.Object({
  concurrent: CapUse,
  per_day: Type.Object(CapUse.properties, { description: 'Creations in the last 24 hours.' }),
})

export const PlanView = Type.Object({
  plan: Type.String({ description: 'Name of the plan.' }),
  sandboxes: DailyCap,
  networks: DailyCap,
  disks: DailyCap,
  templates: DailyCap,
  template_builds: ConcurrentCap,
  webhook_endpoints: ConcurrentCap,
  max_disk_mib: Type.Optional(
    Type.Integer({ description: 'Largest disk of a sandbox. Absent when there is no limit.' }),
  ),
  max_vcpu: Type.Optional(Type.Integer({ description: 'Most vCPUs of a shape. Absent when there is no limit.' })),
  max_mem_mib: Type.Optional(Type.Integer({ description: 'Most memory of a shape. Absent when there is no limit.' })),
  shapes: Type.Array(Type.String(), { description: 'Shapes that a create accepts.' }),
  overrides: Type.Array(Type.String(), {
    description: 'Limits that an operator has set for this account, such as `sandboxes_per_day`.',
  }),
})
export type PlanView = Static<typeof PlanView>
