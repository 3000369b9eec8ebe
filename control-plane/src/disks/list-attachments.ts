/** Lists the disks of a sandbox, with the status that its host reports at this moment, or reported last. */
import type { DiskAttachmentView, HostMountDetails, Page, PageQuery, SandboxStatus } from '@warren/protocol'
import type { SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { HostError } from '../hosts/host-error.ts'
import { clampPage, paged } from '../http/pagination.ts'
import { viewDetails, viewUnsaved } from './details.ts'
import { recordMounts } from './record-status.ts'

export async function listAttachments(
  deps: Deps,
  sandbox: SandboxRow,
  query: PageQuery,
): Promise<Page<DiskAttachmentView>> {
  const { limit, offset } = clampPage(query)
  const attached = deps.db.selectFrom('disk_attachments as a').where('a.sandbox_id', '=', sandbox.id)
  const { total } = await attached.select((eb) => eb.fn.countAll<number>().as('total')).executeTakeFirstOrThrow()
  // Existing clients ask before each file transfer, mostly about sandboxes without disks.
  if (total === 0) return paged([], { total, limit, offset })
  const details = sandbox.status === 'running' ? await refresh(deps, sandbox) : undefined
  const rows = await attached
    .innerJoin('disks as d', 'd.id', 'a.disk_id')
    .select(['a.disk_id', 'd.name', 'd.bucket', 'd.endpoint', 'a.mount_path', 'a.sub_path', 'a.read_only'])
    .select(['a.id', 'a.status', 'a.error', 'a.unsaved'])
    .orderBy('a.created_at', 'desc')
    .orderBy('a.id', 'desc')
    .limit(limit)
    .offset(offset)
    .execute()
  const views = rows.map((row): DiskAttachmentView => {
    const { disk_id, name, bucket, endpoint, mount_path, sub_path, read_only, status, error } = row
    return {
      disk_id,
      name,
      kind: 's3',
      config: { bucket, endpoint },
      mount_path,
      ...(sub_path === '' ? {} : { sub_path }),
      read_only,
      mount_status: status === 'mounted' && !STATUSES_WITH_MOUNTS.has(sandbox.status) ? 'pending' : status,
      ...(error === null ? {} : { mount_error: error }),
      ...(details ? viewDetails(details.get(row.id) ?? {}) : viewUnsaved(row.unsaved)),
    }
  })
  return paged(views, { total, limit, offset })
}

/** In all others the VM is gone or being started: what was mounted will be mounted again. */
const STATUSES_WITH_MOUNTS: ReadonlySet<SandboxStatus> = new Set(['running', 'pausing', 'paused'])

/** Returns what the sandbox says about its mounts, by their ids. That is not stored: it changes with every write to a file. */
async function refresh(deps: Deps, { id, host_id }: SandboxRow): Promise<ReadonlyMap<string, HostMountDetails>> {
  try {
    const host = await deps.hosts.get(host_id)
    const report = await host.getMounts(id)
    await recordMounts(deps.db, [{ id, ...report }])
    return new Map(report.mounts.map((mount) => [mount.id, mount]))
  } catch (error) {
    if (!(error instanceof HostError)) throw error
    deps.log.debug(
      { err: error, sandbox: id },
      'the host did not report the mounts of a sandbox; showing the last ones',
    )
    return new Map()
  }
}
