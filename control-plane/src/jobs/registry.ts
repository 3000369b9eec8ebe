/** All background work. Slow work is a job, defined next to the function that adds it; repeated work is a sweep. */
import { deleteOldAuditEntries } from '../audit/delete-old.ts'
import { deleteOldBandwidthHours } from '../bandwidth/delete-old-hours.ts'
import { chargeUsage } from '../credit/charge.ts'
import { reconcileMounts } from '../disks/reconcile.ts'
import { flushActivity } from '../guest/activity.ts'
import { pushSshKeysJob } from '../guest/add-ssh-keys.ts'
import { deleteExpiredShellTickets } from '../guest/shell-tickets.ts'
import { watchHosts } from '../hosts/heartbeat.ts'
import { deleteExpiredIdempotencyKeys } from '../http/delete-expired-idempotency-keys.ts'
import { reconcileNetworks } from '../networks/reconcile.ts'
import { autoPause } from '../sandboxes/auto-pause.ts'
import { destroyJob } from '../sandboxes/destroy.ts'
import { deleteOldEvents } from '../sandboxes/events.ts'
import { startForkJob } from '../sandboxes/fork.ts'
import { failOrphanedCreates } from '../sandboxes/orphaned-creates.ts'
import { pauseJob } from '../sandboxes/pause.ts'
import { reconcile } from '../sandboxes/reconcile.ts'
import { finishResizes } from '../sandboxes/resize.ts'
import { resumeJob } from '../sandboxes/resume.ts'
import { cleanUpBuilds, deleteOrphanedBuilds } from '../templates/builds/clean-up.ts'
import { runBuilds } from '../templates/builds/run.ts'
import { deleteOldDeliveries } from '../webhooks/delete-old.ts'
import type { Job } from './job.ts'
import { releaseJobsOfDeadProcesses } from './processes.ts'
import type { Sweep } from './sweep.ts'

export const JOBS: readonly Job[] = [destroyJob, pauseJob, resumeJob, startForkJob, pushSshKeysJob]

export const SWEEPS: readonly Sweep[] = [
  releaseJobsOfDeadProcesses,
  deleteExpiredIdempotencyKeys,
  deleteExpiredShellTickets,
  watchHosts,
  failOrphanedCreates,
  reconcile,
  reconcileNetworks,
  reconcileMounts,
  flushActivity,
  autoPause,
  chargeUsage,
  deleteOldEvents,
  deleteOldAuditEntries,
  deleteOldDeliveries,
  deleteOldBandwidthHours,
  finishResizes,
  runBuilds,
  cleanUpBuilds,
  deleteOrphanedBuilds,
]
