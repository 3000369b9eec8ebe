/** The log of a deployment, in the order in which it was written, as far as it is kept. */
import type { Deps } from '../deps.ts'
import { getOwnDeployment } from '../projects/find.ts'

const BATCH = 1_000

export type LogLine = { seq: number; at: string; source: string; stream: string; text: string }

/** Checked before the first line is sent: 404 and 403 are ordinary answers. */
export async function listLog(
  deps: Deps,
  wallet: string,
  ids: { projectId: string; deploymentId: string },
  after: number,
): Promise<AsyncIterable<LogLine>> {
  await getOwnDeployment(deps.db, wallet, ids)
  return readLines(deps, ids.deploymentId, after)
}

async function* readLines(deps: Deps, deploymentId: string, after: number): AsyncGenerator<LogLine> {
  for (let seq = BigInt(after); ; ) {
    const rows = await deps.db
      .selectFrom('gateway.log_lines')
      .selectAll()
      .where('deployment_id', '=', deploymentId)
      .where('seq', '>', seq)
      .orderBy('seq')
      .limit(BATCH)
      .execute()
    for (const row of rows) {
      yield { seq: Number(row.seq), at: row.at.toISOString(), source: row.source, stream: row.stream, text: row.text }
    }
    if (rows.length < BATCH) return
    seq = rows.at(-1)!.seq
  }
}
