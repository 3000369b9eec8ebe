/** Renders a sandbox for the API. Unset fields are omitted, never null. */
import type { SandboxStatus, SandboxView, SpawnKind } from '@warren/protocol'
import type { SandboxRow } from '../db/schema.ts'

/** A row, and what is known of it only while it is created. */
export type CreatedSandbox = SandboxRow & { spawn_kind: SpawnKind }

export function viewSandbox(row: SandboxRow | CreatedSandbox, ingressDomain: string): SandboxView {
  return {
    id: row.id,
    name: row.name,
    status: row.status,
    ip: visibleAddress(row),
    vcpu: row.vcpu,
    mem_mib: row.mem_mib,
    disk_mib: row.disk_mib,
    shape: row.shape,
    rootfs: row.rootfs,
    template_id: row.template_id ?? undefined,
    region: row.region,
    ingress_enabled: row.ingress_enabled,
    ingress_url_template: row.ingress_enabled && ingressDomain !== '' ? ingressUrl(row.id, ingressDomain) : undefined,
    bandwidth_ingress_bytes: row.bandwidth_ingress_bytes,
    bandwidth_quota_bytes: row.bandwidth_quota_bytes,
    auto_pause_after_seconds: row.auto_pause_after_seconds ?? undefined,
    auto_resume: row.auto_resume || undefined,
    envs: row.env_names,
    ssh_pubkeys: row.ssh_pubkeys,
    egress: row.egress,
    created_at: renderTime(row.created_at),
    created_by: row.user_id,
    spawn_ms: row.spawn_ms ?? undefined,
    spawn_kind: 'spawn_kind' in row ? row.spawn_kind : undefined,
    running_at: row.running_at ? renderTime(row.running_at) : undefined,
    paused_at: row.paused_at ? renderTime(row.paused_at) : undefined,
    last_resumed_at: row.last_resumed_at ? renderTime(row.last_resumed_at) : undefined,
    destroyed_at: row.destroyed_at ? renderTime(row.destroyed_at) : undefined,
    forked_from: row.forked_from ?? undefined,
    status_reason: row.status_reason ?? undefined,
  }
}

/** The address is allocated before the VM exists, and shown once it does. */
export const visibleAddress = ({ ip, status }: { ip: string | null; status: SandboxStatus }): string | undefined =>
  status === 'creating' || status === 'forking' ? undefined : (ip ?? undefined)

/** `<port>` is literal: clients replace it with their port. */
const ingressUrl = (id: string, domain: string) => `https://${id.slice('sb-'.length).toLowerCase()}-<port>.${domain}`

const TWO_DIGITS = Array.from({ length: 60 }, (_, n) => String(n).padStart(2, '0'))

/** Same result as `toISOString` at half its cost, which would dominate the cost of rendering a view. */
export function renderTime(time: Date): string {
  const date = `${time.getUTCFullYear()}-${TWO_DIGITS[time.getUTCMonth() + 1]}-${TWO_DIGITS[time.getUTCDate()]}`
  const minutes = `${TWO_DIGITS[time.getUTCHours()]}:${TWO_DIGITS[time.getUTCMinutes()]}`
  const ms = time.getUTCMilliseconds()
  return `${date}T${minutes}:${TWO_DIGITS[time.getUTCSeconds()]}.${ms < 10 ? '00' : ms < 100 ? '0' : ''}${ms}Z`
}
