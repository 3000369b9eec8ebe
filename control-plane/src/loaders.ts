/** Batched lookups (db/batch.ts) that almost every request makes. */

import { findTokens } from './access-tokens/find.ts'
import { batched } from './db/batch.ts'
import type { Database } from './db/connect.ts'
import { countByStatus } from './sandboxes/count-by-status.ts'
import { findSandboxes, findSandboxVersions } from './sandboxes/queries.ts'

export type Loaders = ReturnType<typeof createLoaders>

export const createLoaders = (database: Database) => ({
  sandbox: batched((ids: string[]) => findSandboxes(database, ids)),
  accessToken: batched((hashes: string[]) => findTokens(database, hashes)),
  sandboxVersion: batched((ids: string[]) => findSandboxVersions(database, ids)),
  sandboxCounts: batched((userIds: string[]) => countByStatus(database, userIds)),
})
