/**
 * Accepts a Dockerfile. The template begins as `pending`; a sweep starts its build when a host has room for one
 * (builds/run.ts). The plan's caps are checked under the lock of the user's row, as for sandboxes.
 */
import { badField } from '@warren/kit/failure'
import { newId, type TemplateCreateBody, type TemplateView, templateImageName } from '@warren/protocol'
import { sql } from 'kysely'
import { currentAuditId } from '../audit/context.ts'
import type { Tx } from '../db/connect.ts'
import type { Deps } from '../deps.ts'
import { checkDiskSpace } from '../sandboxes/disk-space.ts'
import { checkEmulation } from '../sandboxes/emulation.ts'
import { checkCaps, checkCredit } from '../users/caps.ts'
import { withLockedUser } from '../users/locked.ts'
import type { TemplateBase } from './base.ts'
import { TEMPLATE_BUILD_CAPS, TEMPLATE_CAPS } from './caps.ts'
import { emitTemplateEvent } from './emit.ts'
import { planTemplate } from './plan.ts'
import { viewTemplate } from './queries.ts'
import { createRules } from './rules.ts'

/** Runs in the transaction that creates the template. */
type Commit = (tx: Tx, view: TemplateView) => Promise<void>

export async function createTemplate(
  deps: Deps,
  userId: string,
  { name, dockerfile, no_cache }: TemplateCreateBody,
  commit?: Commit,
): Promise<TemplateView> {
  const plan = await planTemplate(createRules(deps, userId), dockerfile)
  return withLockedUser(deps.db, userId, async (tx, user) => {
    const hostId = await lockBase(tx, plan.source)
    await checkCaps(tx, user, TEMPLATE_CAPS)
    await checkCaps(tx, user, TEMPLATE_BUILD_CAPS)
    checkCredit(user, 'create', 'templates')
    if (!deps.config.allowTcgTenants) await checkEmulation(tx, hostId ?? undefined)
    await checkDiskSpace(tx, hostId ?? undefined)
    const row = await tx
      .insertInto('templates')
      .values({
        id: newId('template'),
        user_id: userId,
        name,
        status: 'pending',
        base: plan.base,
        image: plan.source.kind === 'image' ? plan.source.name : templateImageName(plan.source.id),
        base_env: JSON.stringify(plan.baseEnv),
        dockerfile,
        no_cache: no_cache ?? false,
        env: JSON.stringify(plan.env),
        host_id: hostId,
        audit_id: currentAuditId() ?? null,
      })
      .returningAll()
      .executeTakeFirstOrThrow()
    const view = viewTemplate(row)
    await emitTemplateEvent(tx, 'template.submit', row)
    await commit?.(tx, view)
    return view
  })
}

/**
 * The host of a base that is a template: only there is its image. It keeps the image of a deleted template while another
 * is built on it (builds/clean-up.ts); the lock prevents a delete before that other one exists.
 */
async function lockBase(tx: Tx, source: TemplateBase['source']): Promise<string | null> {
  if (source.kind === 'image') return null
  const { rows } = await sql<{ host_id: string }>`select host_id from templates
    where id = ${source.id} and deleted_at is null for share`.execute(tx)
  const base = rows[0]
  if (!base) throw badField({ dockerfile: `the template ${source.id}, which FROM names, was deleted` })
  return base.host_id
}
