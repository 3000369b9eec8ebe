/** Private networks between sandboxes (spec 2.7, 4.6; wire 8). */
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

/** A paused member stays one; its status is that of the sandbox. */
export const NetworkMember = Type.Object({
  sandbox_id: SandboxId,
  name: Type.Optional(Type.String({ description: 'Resolves inside the network; absent until it is programmed.' })),
  status: SandboxStatus,
  ip: Type.Optional(Type.String({ description: 'In this network; absent until it is programmed.' })),
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
