/** Private networks between sandboxes (docs/api.md#network). */
import { type Static, Type } from 'typebox'
import { NetworkId, ResourceName, SandboxId, Timestamp } from './ids.ts'
import { SandboxStatus } from './sandbox.ts'

export const NetworkCreateBody = Type.Object({ name: ResourceName })
export type NetworkCreateBody = Static<typeof NetworkCreateBody>

export const NetworkParams = Type.Object({ id: Type.String({ description: 'Network id or name' }) })
export type NetworkParams = Static<typeof NetworkParams>

export const NetworkView = Type.Object({
  id: NetworkId,
  name: Type.String(),
  created_at: Timestamp,
  member_count: Type.Integer(),
})
export type NetworkView = Static<typeof NetworkView>

/** A paused sandbox remains a member. */
export const NetworkMember = Type.Object({
  sandbox_id: SandboxId,
  name: Type.Optional(
    Type.String({
      description: 'Name that resolves inside the network. Absent until the network is configured on the host.',
    }),
  ),
  status: SandboxStatus,
  ip: Type.Optional(
    Type.String({ description: 'Address in this network. Absent until the network is configured on the host.' }),
  ),
})
export type NetworkMember = Static<typeof NetworkMember>

export const NetworkDetailView = Type.Object({ ...NetworkView.properties, members: Type.Array(NetworkMember) })
export type NetworkDetailView = Static<typeof NetworkDetailView>

export const NetworkAttachBody = Type.Object({ id: Type.String({ minLength: 1, description: 'Network id or name.' }) })
export type NetworkAttachBody = Static<typeof NetworkAttachBody>

export const NetworkDetachParams = Type.Object({
  id: Type.String({ description: 'Sandbox id' }),
  net: Type.String({ description: 'Network id or name' }),
})
export type NetworkDetachParams = Static<typeof NetworkDetachParams>
