/** What a client sees of a sandbox. Unset fields are left out, never null (wire 1.2). */
import type { SandboxView } from '@warren/protocol'
import type { SandboxRow } from '../db/schema.ts'

export function viewSandbox(row: SandboxRow, ingressDomain: string): SandboxView {
  return {
    id: row.id,
    name: row.name,
    status: row.status,
    ip: row.ip ?? undefined,
    vcpu: row.vcpu,
    mem_mib: row.mem_mib,
    disk_mib: row.disk_mib,
    shape: row.shape,
    rootfs: row.rootfs,
    region: row.region,
    ingress_enabled: row.ingress_enabled,
    ingress_url_template: row.ingress_enabled && ingressDomain !== '' ? ingressUrl(row.id, ingressDomain) : undefined,
    bandwidth_ingress_bytes: row.bandwidth_ingress_bytes,
    bandwidth_quota_bytes: row.bandwidth_quota_bytes,
    auto_pause_after_seconds: row.auto_pause_after_seconds ?? undefined,
    envs: row.env_names,
    ssh_pubkeys: row.ssh_pubkeys,
    egress: row.egress,
    created_at: row.created_at.toISOString(),
    created_by: row.user_id,
    spawn_ms: row.spawn_ms ?? undefined,
    running_at: row.running_at?.toISOString(),
    paused_at: row.paused_at?.toISOString(),
    last_resumed_at: row.last_resumed_at?.toISOString(),
    destroyed_at: row.destroyed_at?.toISOString(),
    forked_from: row.forked_from ?? undefined,
    status_reason: row.status_reason ?? undefined,
  }
}

/** `<port>` stays literal: clients put their port in its place. */
const ingressUrl = (id: string, domain: string) => `https://${id.slice('sb-'.length).toLowerCase()}-<port>.${domain}`
