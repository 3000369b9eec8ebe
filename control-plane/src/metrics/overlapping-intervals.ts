/**
 * The usage intervals (sandboxes/usage.ts) of a user that overlap a window, as SQL.
 *
 * An index cannot find overlaps in a large past: of the intervals that started before the end of the window, most have
 * ended long ago. So ended intervals are indexed in classes of similar length (the column length_class, migration 0011). In
 * each class the ones that overlap have started within the window, or before it by less than the longest length of the
 * class. The bounds grow by a factor of four, so if starts are spread evenly, at least a quarter of what is read there
 * does overlap. Open intervals are found by the index of those that are not settled.
 */
import { type RawBuilder, sql } from 'kysely'

/** The same bounds as in the definition of length_class. */
export const LENGTH_CLASS_SECONDS: readonly number[] = Array.from({ length: 11 }, (_, n) => 60 * 4 ** n)

const COLUMNS = sql`i.sandbox_id, i.kind, i.shape, i.cpu_pct, i.mem_mib, i.disk_mib, i.started_at`

/** Includes intervals that start at `to`. Those that are open have `ended_at` 'infinity'. */
export function overlappingIntervals(userId: string, from: Date, to: Date): RawBuilder<unknown> {
  const open = sql`select ${COLUMNS}, 'infinity'::timestamptz as ended_at from usage_intervals i
    where i.user_id = ${userId} and not i.settled and i.ended_at is null and i.started_at <= ${to}`
  const ended = [...LENGTH_CLASS_SECONDS, undefined].map((longestSeconds, lengthClass) => {
    const started = longestSeconds ? sql`and i.started_at > ${new Date(from.getTime() - longestSeconds * 1000)}` : sql`` // The longest class has no bound.
    return sql`select ${COLUMNS}, i.ended_at from usage_intervals i
      where i.user_id = ${userId} and i.ended_at is not null and i.ended_at > ${from} and i.started_at <= ${to}
        and i.length_class = ${sql.lit(lengthClass)} ${started}`
  })
  return sql.join([open, ...ended], sql` union all `)
}
