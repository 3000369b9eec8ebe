/**
 * Counts templates for the caps of plans. A failed one keeps nothing but its log, so it does not count as concurrent; of
 * the daily cap it uses up one, because its build was run.
 */
import { sql } from 'kysely'
import { type CappedResource, countTable, takeCount } from '../users/caps.ts'

export const TEMPLATE_CAPS: CappedResource = {
  kind: 'templates',
  noun: 'template',
  countLive: async (db, userId) =>
    takeCount(
      await sql<{ n: number }>`select count(*) as n from templates
        where user_id = ${userId} and status <> 'failed' and deleted_at is null`.execute(db),
    ),
  countDay: countTable('templates').countDay,
}

/** Builds that run or wait for a host. */
export const TEMPLATE_BUILD_CAPS: CappedResource = {
  kind: 'template_builds',
  noun: 'build',
  code: 'build_limit',
  countLive: async (db, userId) =>
    takeCount(
      await sql<{ n: number }>`select count(*) as n from templates
        where user_id = ${userId} and status in ('pending', 'building') and deleted_at is null`.execute(db),
    ),
}
