/** Converts a share of CPU time into the kernel's quota and period. */

export type CpuQuota = { quotaUs: number; periodUs: number }

const PERIOD_US = 100_000
/** A guest that used up its fraction of a core waits for the next period: at worst 68 ms with 100 ms, 38 ms with 20 ms. */
const FRACTION_PERIOD_US = 20_000

/** `cpuPercent`: 100 is one whole core. */
export function cpuQuota(cpuPercent: number): CpuQuota {
  if (!(cpuPercent >= 5)) throw new Error(`${cpuPercent} % of a core is below the kernel's shortest quota of 1 ms`)
  const periodUs = cpuPercent < 100 ? FRACTION_PERIOD_US : PERIOD_US
  return { quotaUs: Math.round((periodUs * cpuPercent) / 100), periodUs }
}
