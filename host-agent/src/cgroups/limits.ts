/** A sandbox's share in the words of the kernel. */

/** 100 is one whole core. */
export type CpuQuota = { quotaUs: number; periodUs: number }

const PERIOD_US = 100_000
/** A guest with a fraction of a core that used it up waits for the next period: 68 ms at worst with 100, 38 with 20. */
const FRACTION_PERIOD_US = 20_000

export function cpuQuota(cpuPercent: number): CpuQuota {
  if (!(cpuPercent >= 5)) throw new Error(`${cpuPercent} % of a core is below the kernel's shortest quota of 1 ms`)
  const periodUs = cpuPercent < 100 ? FRACTION_PERIOD_US : PERIOD_US
  return { quotaUs: Math.round((periodUs * cpuPercent) / 100), periodUs }
}
