import { sql } from 'kysely'

/**
 * A condition for `sandboxes`. Written with literals: as parameters of a prepared statement the statuses are unknown when it is
 * planned, and the planner could not see that the indexes of sandboxes that have not ended apply.
 */
export const HAS_NOT_ENDED = sql<boolean>`status not in ('destroyed', 'failed')`
