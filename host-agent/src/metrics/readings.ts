/** What the kernel said about a VMM at one time, and averages between two of them. */

export type Reading = {
  /** Of a clock that is never set. */
  atMs: number
  /** Since the VMM started. */
  cpuNs: number
  residentBytes: number
}

/** The average that clients see covers 15 to 30 s: with a reading every 10 s there is always one of that age. */
const AVERAGE_MIN_MS = 15_000
const AVERAGE_MAX_MS = 30_000

/** The readings that an average may still need: those of the last 30 s. At least the newest. */
export function readingsToKeep(readings: readonly Reading[]): Reading[] {
  const newest = readings.at(-1)
  return readings.filter((reading) => reading === newest || newest!.atMs - reading.atMs < AVERAGE_MAX_MS)
}

/**
 * Cores used from the youngest reading that is at least 15 s old to `now`; from the oldest one if the VMM was not measured
 * for so long. Undefined if there is none before `now`.
 */
export function averageCores(readings: readonly Reading[], now: Reading): number | undefined {
  const usable = readings.filter(({ atMs }) => atMs < now.atMs)
  const from = usable.findLast(({ atMs }) => now.atMs - atMs >= AVERAGE_MIN_MS) ?? usable[0]
  if (!from) return undefined
  const cores = Math.max(0, now.cpuNs - from.cpuNs) / ((now.atMs - from.atMs) * 1e6)
  return Math.round(cores * 1e4) / 1e4
}
