/**
 * Ends an attempt in the database: the template is ready, has failed, or is tried again. One transaction releases what the
 * build held, records the attempt and emits the event. A template that was deleted meanwhile, or whose attempt another
 * process has ended, is left alone.
 */
import { type HostBuild, TEMPLATE_ATTEMPTS_MAX } from '@warren/protocol'
import type { Tx } from '../../db/connect.ts'
import type { TemplateRow } from '../../db/schema.ts'
import type { Deps } from '../../deps.ts'
import { emitTemplateEvent } from '../emit.ts'
import { moveTemplate } from '../move.ts'
import { releaseBuild } from './reserve.ts'

type Image = NonNullable<HostBuild['image']>
export type AttemptFailure = {
  code: string
  reason: string
  /** The host has ended the attempt. Otherwise its VM may still run, and holds what it held until the host confirms. */
  endedOnHost: boolean
}
type Steps = Partial<Pick<HostBuild, 'steps_cached' | 'steps_run'>>

export async function endReady(deps: Deps, row: TemplateRow, image: Image, steps: Steps): Promise<void> {
  const ended = await deps.db.transaction().execute(async (tx) => {
    const moved = await moveTemplate(tx, row, 'buildDone', {
      ext4_size_bytes: image.size_bytes,
      min_disk_mib: image.min_disk_mib,
      built_at: deps.now(),
    })
    if (!moved) return false
    await recordEnd(deps, tx, row, steps)
    await emitTemplateEvent(tx, 'template.build.complete', moved)
    await releaseBuild(tx, row.id)
    return true
  })
  if (ended) observe(deps, row, 'ready', steps)
}

export async function endFailed(deps: Deps, row: TemplateRow, failure: AttemptFailure, steps: Steps): Promise<void> {
  const ended = await deps.db.transaction().execute(async (tx) => {
    const moved = await moveTemplate(tx, row, 'buildFailed', { failure_reason: failure.reason })
    if (!moved) return false
    await recordEnd(deps, tx, row, steps, failure)
    await emitTemplateEvent(tx, 'template.build.complete', moved)
    if (failure.endedOnHost) await releaseBuild(tx, row.id)
    return true
  })
  if (ended) observe(deps, row, 'failed', steps)
}

export const mayRetry = ({ attempt }: TemplateRow, { code }: { code: string }): boolean =>
  code === 'interrupted' && attempt < TEMPLATE_ATTEMPTS_MAX

/** The next attempt runs on the same host, because the log is there. */
export async function retry(deps: Deps, row: TemplateRow, failure: AttemptFailure, steps: Steps): Promise<void> {
  const attempt = row.attempt + 1
  const retried = await deps.db.transaction().execute(async (tx) => {
    const updated = await tx
      .updateTable('templates')
      .set({ attempt, attempt_started_at: deps.now() })
      .where('id', '=', row.id)
      .where('attempt', '=', row.attempt)
      .where('status', '=', 'building')
      .where('deleted_at', 'is', null)
      .executeTakeFirst()
    if (updated.numUpdatedRows !== 1n) return false
    await recordEnd(deps, tx, row, steps, failure)
    await tx.insertInto('template_attempts').values({ template_id: row.id, attempt, host_id: row.host_id! }).execute()
    return true
  })
  if (!retried) return
  deps.metrics.templateBuilds.inc({ outcome: 'retried' })
  deps.log.warn({ template: row.id, attempt, reason: failure.reason }, 'build was interrupted, trying again')
}

async function recordEnd(deps: Deps, tx: Tx, row: TemplateRow, steps: Steps, failure?: AttemptFailure): Promise<void> {
  await tx
    .updateTable('template_attempts')
    .set({
      ended_at: deps.now(),
      failure: failure?.code ?? null,
      failure_reason: failure?.reason ?? null,
      steps_cached: steps.steps_cached ?? null,
      steps_run: steps.steps_run ?? null,
    })
    .where('template_id', '=', row.id)
    .where('attempt', '=', row.attempt)
    .execute()
}

function observe(deps: Deps, row: TemplateRow, outcome: 'ready' | 'failed', steps: Steps): void {
  const startedAt = row.attempt_started_at ?? row.created_at
  const seconds = Math.max(0, (deps.now().getTime() - startedAt.getTime()) / 1000)
  deps.metrics.templateBuilds.inc({ outcome })
  deps.metrics.templateBuildSeconds.observe({ outcome }, seconds)
  deps.metrics.templateSteps.inc({ result: 'cached' }, steps.steps_cached ?? 0)
  deps.metrics.templateSteps.inc({ result: 'run' }, steps.steps_run ?? 0)
  deps.log.info({ template: row.id, attempt: row.attempt, outcome, seconds, ...steps }, 'build of a template ended')
}
