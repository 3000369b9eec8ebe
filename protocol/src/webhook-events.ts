/** Webhook events: the actions and the data of each. */
import { type Static, type TObject, Type } from 'typebox'
import { DiskId, NetworkId, SandboxId, TemplateId, Timestamp, UserId } from './ids.ts'
import { SandboxStatus } from './sandbox.ts'
import { TEMPLATE_STATUSES } from './template.ts'

export const WEBHOOK_ACTIONS = [
  'sandbox.create',
  'sandbox.destroy',
  'sandbox.pause',
  'sandbox.resume',
  'sandbox.fork',
  'sandbox.patch',
  'sandbox.resize',
  'sandbox.egress.set',
  'sandbox.ssh_pubkey.update',
  'sandbox.bandwidth.update',
  'disk.create',
  'disk.delete',
  'disk.attach',
  'disk.detach',
  'network.create',
  'network.delete',
  'network.attach',
  'network.detach',
  'template.submit',
  'template.delete',
  'template.build.start',
  'template.build.complete',
  'account.credit.low',
] as const
export type WebhookAction = (typeof WEBHOOK_ACTIONS)[number]
export const WebhookAction = Type.Enum(WEBHOOK_ACTIONS)

/** Sent on request to one endpoint, whatever it subscribes to. It is not an action that can be subscribed to. */
export const WEBHOOK_TEST_ACTION = 'webhook.test'
export const DeliveredAction = Type.Enum([...WEBHOOK_ACTIONS, WEBHOOK_TEST_ACTION])
export type DeliveredAction = Static<typeof DeliveredAction>

/** Fields of the resource that the action is named after. */
const sandbox = { id: SandboxId, name: Type.String() }
const disk = { id: DiskId, name: Type.String(), disk_id: DiskId }
const network = { id: NetworkId, name: Type.String(), network_id: NetworkId }

const SandboxStatusData = Type.Object({
  ...sandbox,
  status: SandboxStatus,
  status_reason: Type.Optional(Type.String()),
})
const DiskAttachmentData = Type.Object({ ...disk, sandbox_id: SandboxId, mount_path: Type.String() })
const NetworkAttachmentData = Type.Object({ ...network, sandbox_id: SandboxId })
const TemplateStatusData = Type.Object({
  id: TemplateId,
  name: Type.String(),
  template_id: TemplateId,
  status: Type.Enum([...TEMPLATE_STATUSES, 'destroyed']),
  failure_reason: Type.Optional(Type.String()),
})

/**
 * Deliveries leave the installation, so they never contain credentials, tokens or values of environment variables.
 * Fields can be added but not removed.
 */
export const WEBHOOK_DATA = {
  'sandbox.create': Type.Object({
    ...sandbox,
    shape: Type.String(),
    disk_mib: Type.Integer(),
    region: Type.String(),
    rootfs: Type.String(),
  }),
  'sandbox.destroy': SandboxStatusData,
  'sandbox.pause': SandboxStatusData,
  'sandbox.resume': SandboxStatusData,
  'sandbox.fork': Type.Object({ ...sandbox, forked_from: SandboxId, status: SandboxStatus }),
  /** Contains only the changed fields. */
  'sandbox.patch': Type.Object({
    ...sandbox,
    ingress_enabled: Type.Optional(Type.Boolean()),
    auto_pause_after_seconds: Type.Optional(Type.Integer()),
    disable_auto_pause: Type.Optional(Type.Literal(true)),
    auto_resume: Type.Optional(Type.Boolean()),
  }),
  'sandbox.resize': Type.Object({ ...sandbox, disk_mib: Type.Integer() }),
  'sandbox.egress.set': Type.Object({ ...sandbox, egress: Type.Array(Type.String()) }),
  'sandbox.ssh_pubkey.update': Type.Object({ ...sandbox, count: Type.Integer() }),
  'sandbox.bandwidth.update': Type.Object({ ...sandbox, add_bytes: Type.Integer(), quota_bytes: Type.Integer() }),
  'disk.create': Type.Object(disk),
  'disk.delete': Type.Object(disk),
  'disk.attach': DiskAttachmentData,
  'disk.detach': DiskAttachmentData,
  'network.create': Type.Object(network),
  'network.delete': Type.Object(network),
  'network.attach': NetworkAttachmentData,
  'network.detach': NetworkAttachmentData,
  'template.submit': TemplateStatusData,
  'template.delete': TemplateStatusData,
  'template.build.start': TemplateStatusData,
  'template.build.complete': TemplateStatusData,
  /** Once each time that the balance falls below the operator's threshold. */
  'account.credit.low': Type.Object({ id: UserId, name: Type.String(), balance_micro: Type.Integer() }),
} as const satisfies Record<WebhookAction, TObject>
export type WebhookData<Action extends WebhookAction> = Static<(typeof WEBHOOK_DATA)[Action]>

/** Body of a delivery of any action. */
export const WebhookEvent = Type.Object({
  event: DeliveredAction,
  occurredAt: Timestamp,
  data: Type.Record(Type.String(), Type.Unknown()),
})
export type WebhookEvent = Static<typeof WebhookEvent>
