import { startChild } from '../child.ts'
import type { Fixture } from '../row.ts'
import type { Slice, SliceResult } from './slice.ts'

export type LoadGenerator = (slice: Slice) => Promise<SliceResult>

/** One process serves all candidates of all rows. */
export const loadGenerator: Fixture<LoadGenerator> = async (run) => {
  const child = await startChild('bench/src/load/main.ts')
  run.defer(child.stop)
  return async (slice) => {
    const response = await child.request<SliceResult | { error: string }>(slice)
    if ('error' in response) throw new Error(`failed to send load to ${slice.url}: ${response.error}`)
    return response
  }
}
