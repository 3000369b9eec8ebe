/** The types of the tables. Columns have the field names of the API, so views need little mapping. */
import type {
  AuditActorKind,
  AuditOutcome,
  CreditEntryKind,
  DeliveredAction,
  DeliveryStatus,
  EventActor,
  HostImage,
  HostStatus,
  MountStatus,
  SandboxStatus,
  TemplateStatus,
  WebhookAction,
} from '@warren/protocol'
import type { ColumnType, Generated, GeneratedAlways, Insertable, Selectable } from 'kysely'
import type { StoredUnsaved } from '../disks/details.ts'
import type { LimitOverrides, PlanName } from '../users/plans.ts'

/** Set by the database when the row is inserted. */
type CreatedAt = ColumnType<Date, Date | undefined, never>

export type Tables = {
  users: {
    id: string
    name: string
    external_id: string | null
    plan: PlanName
    operator: Generated<boolean>
    credit_micro: Generated<number>
    limit_overrides: ColumnType<LimitOverrides, string | undefined, string>
    /** Only used in SQL: it exceeds what a number holds exactly. */
    credit_carry: Generated<number>
    credit_entry_count: Generated<number>
    credit_low_at: Date | null
    created_at: CreatedAt
  }
  credit_entries: {
    id: Generated<number>
    user_id: string
    kind: CreditEntryKind
    amount_micro: number
    balance_micro: number
    reason: string
    sandbox_id: string | null
    reference: string | null
    interval_id: number | null
    period_start: Date | null
    period_end: Date | null
    vcpu_price: number | null
    mem_price: number | null
    disk_price: number | null
    units: string | null
    created_at: CreatedAt
  }
  api_keys: {
    id: string
    user_id: string
    name: string
    hash: Buffer
    hint: string
    created_at: CreatedAt
    revoked_at: Date | null
  }
  rootfs: {
    name: string
    description: string
    enabled: boolean
    enable_with: string | null
    deprecated: Generated<boolean>
    successor: string | null
    position: number
  }
  hosts: {
    id: string
    region: string
    status: HostStatus
    mem_mib: number
    reserved_mib: Generated<number>
    vm_count: Generated<number>
    rootfses: Generated<string[]>
    /** Null until the host has reported it. */
    disk_total_mib: number | null
    disk_free_mib: number | null
    disk_floor_mib: number | null
    disk_sandboxes_mib: number | null
    seen_at: Generated<Date>
    created_at: CreatedAt
    address: Generated<string>
    cidr: string | null
    address_cursor: Generated<number>
    images: ColumnType<HostImage[], string | undefined, string>
    draining: Generated<boolean>
    accel: 'kvm' | 'tcg' | null
    /** Whether disks can be mounted there. */
    disks: Generated<boolean>
  }
  sandboxes: {
    id: string
    user_id: string
    name: string
    status: SandboxStatus
    fence: Generated<number>
    status_reason: string | null
    host_id: string | null
    ip: string | null
    shape: string
    rootfs: string
    region: string
    vcpu: number
    mem_mib: number
    disk_mib: number
    ingress_enabled: Generated<boolean>
    auto_pause_after_seconds: number | null
    env_names: Generated<string[]>
    ssh_pubkeys: Generated<string[]>
    egress: Generated<string[]>
    bandwidth_quota_bytes: number
    bandwidth_ingress_bytes: Generated<number>
    spawn_ms: number | null
    forked_from: string | null
    created_at: CreatedAt
    running_at: Date | null
    paused_at: Date | null
    last_resumed_at: Date | null
    destroyed_at: Date | null
    owner: string | null
    reserved_mib: Generated<number>
    last_active_at: Date | null
    status_since: Generated<Date>
    status_actor: Generated<EventActor>
    status_audit_id: string | null
    generation: number | null
    auto_resume: Generated<boolean>
    bandwidth_used_bytes: Generated<number>
    template_id: string | null
  }
  templates: {
    id: string
    user_id: string
    name: string
    status: TemplateStatus
    base: string
    image: string
    base_env: ColumnType<Record<string, string>, string, never>
    dockerfile: string
    no_cache: boolean
    env: ColumnType<Record<string, string>, string, never>
    attempt: Generated<number>
    attempt_started_at: Date | null
    host_id: string | null
    ip: string | null
    reserved_mib: Generated<number>
    ext4_size_bytes: Generated<number>
    min_disk_mib: Generated<number>
    failure_reason: string | null
    audit_id: string | null
    created_at: CreatedAt
    built_at: Date | null
    deleted_at: Date | null
  }
  template_attempts: {
    template_id: string
    attempt: number
    host_id: string
    started_at: Generated<Date>
    ended_at: Date | null
    failure: string | null
    failure_reason: string | null
    steps_cached: number | null
    steps_run: number | null
  }
  sandbox_resizes: {
    sandbox_id: string
    disk_mib: number
    owner: string | null
    audit_id: string | null
    caller: string | null
    key: string | null
    attempts: Generated<number>
    retry_at: Generated<Date>
  }
  networks: {
    id: string
    user_id: string
    name: string
    created_at: CreatedAt
    deleted_at: Date | null
  }
  network_members: {
    network_id: string
    sandbox_id: string
    joined_at: Generated<Date>
  }
  disks: {
    id: string
    user_id: string
    name: string
    bucket: string
    endpoint: string
    region: string
    use_path_style: boolean
    /** Encrypted (secrets/places.ts). Null once the disk is deleted. */
    credentials: string | null
    created_at: CreatedAt
    deleted_at: Date | null
  }
  disk_attachments: {
    id: string
    sandbox_id: string
    disk_id: string
    mount_path: string
    sub_path: string
    read_only: boolean
    revision: Generated<number>
    status: Generated<MountStatus>
    error: string | null
    unsaved: ColumnType<StoredUnsaved | null, undefined, never>
    created_at: CreatedAt
  }
  mount_revisions: {
    sandbox_id: string
    revision: number
  }
  network_revisions: {
    sandbox_id: string
    revision: number
  }
  sandbox_envs: {
    sandbox_id: string
    /** Encrypted (secrets/places.ts). */
    envs: string
  }
  sandbox_events: {
    id: Generated<number>
    sandbox_id: string
    at: Generated<Date>
    actor: EventActor
    from_status: SandboxStatus
    to_status: SandboxStatus
    reason: string | null
    duration_ms: number
  }
  usage_intervals: {
    id: Generated<number>
    sandbox_id: string
    user_id: string
    kind: UsageKind
    shape: string
    cpu_pct: number
    mem_mib: number
    disk_mib: number
    started_at: Generated<Date>
    ended_at: Date | null
    billable: boolean
    charged_until: Date
    uncharged_us: Generated<number>
    settled: Generated<boolean>
    /** Null while the interval is open (metrics/overlapping-intervals.ts). */
    length_class: GeneratedAlways<number | null>
  }
  bandwidth_hours: {
    user_id: string
    hour: Date
    sandbox_id: string
    egress_bytes: number
    ingress_bytes: number
    first_at: Date
    last_at: Date
  }
  access_tokens: {
    sandbox_id: string
    hash: Buffer
    hint: string
    created_at: CreatedAt
    rotated_at: Date | null
  }
  sandbox_counts: { user_id: string } & Record<SandboxStatus, Generated<number>>
  idempotency_keys: {
    caller: string
    key: string
    request_hash: Buffer
    owner: string
    status: number | null
    answer: string | null
    created_at: CreatedAt
  }
  audit_log: {
    id: string
    at: Generated<Date>
    user_id: string | null
    actor_kind: AuditActorKind
    actor: string
    credential: string | null
    action: string
    target: string | null
    outcome: AuditOutcome
    status: number | null
    code: string | null
    request_id: string | null
  }
  webhook_endpoints: {
    id: Generated<string>
    user_id: string
    url: string
    /** Encrypted (secrets/places.ts). */
    secret: string
    events: Generated<WebhookAction[]>
    active: Generated<boolean>
    failure_count: Generated<number>
    created_at: CreatedAt
    owner: string | null
  }
  webhook_deliveries: {
    id: Generated<string>
    seq: GeneratedAlways<number>
    endpoint_id: string
    event_action: DeliveredAction
    subject: string
    payload: string
    audit_log_id: string | null
    status: Generated<DeliveryStatus>
    attempts: Generated<number>
    last_error: string | null
    next_attempt_at: Date | null
    delivered_at: Date | null
    completed_at: Date | null
    created_at: CreatedAt
  }
  secret_keys: {
    id: string
    current: boolean
    created_at: CreatedAt
  }
  service_processes: {
    id: string
    pools: Generated<string[]>
    started_at: CreatedAt
    seen_at: Generated<Date>
    activity_at: Generated<Date>
    secret_keys: Generated<string[]>
  }
}

/** Billing differs by kind: `running` pays for everything, `paused` for memory and disk, `error` for the disk only. */
export type UsageKind = 'running' | 'paused' | 'error'

export type SandboxRow = Selectable<Tables['sandboxes']>
export type NewSandboxRow = Insertable<Tables['sandboxes']>
export type UserRow = Selectable<Tables['users']>
export type HostRow = Selectable<Tables['hosts']>
export type WebhookEndpointRow = Selectable<Tables['webhook_endpoints']>
export type WebhookDeliveryRow = Selectable<Tables['webhook_deliveries']>
export type TemplateRow = Selectable<Tables['templates']>
export type ResizeRow = Selectable<Tables['sandbox_resizes']>
export type DiskRow = Selectable<Tables['disks']>
export type DiskAttachmentRow = Selectable<Tables['disk_attachments']>
export type NetworkRow = Selectable<Tables['networks']>
