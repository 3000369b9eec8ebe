/**
 * The control plane with a fake host on a database whose time the test sets, and what usage costs, computed apart from
 * the code that charges it.
 *
 * The clock begins an hour ahead: columns with a default have the real time, and jobs of the future would not run.
 */
import { findShape } from '@warren/protocol'
import { UNITS_PER_MICRO } from '../credit/price.ts'
import type { UsageKind } from '../db/schema.ts'
import { watchHosts } from '../hosts/heartbeat.ts'
import { createDatabaseWithTestClock, setDatabaseTime } from './database-with-clock.ts'
import { createHostedApp, type HostedApp } from './with-host.ts'

export type ClockedApp = HostedApp & {
  /** In microseconds since the start of the test. */
  time(): bigint
  advance(seconds: number): Promise<void>
}

export async function createClockedApp(options: Parameters<typeof createHostedApp>[0] = {}): Promise<ClockedApp> {
  const database = await createDatabaseWithTestClock()
  const startMs = Date.now() + 3_600_000
  let elapsedMs = 0
  await setDatabaseTime(database.db, startMs)
  const hosted = await createHostedApp({ ...options, database })
  // The first time it is recorded with the real time, which is past.
  await watchHosts.run(hosted.deps)
  return {
    ...hosted,
    time: () => BigInt(elapsedMs) * 1000n,
    async advance(seconds) {
      elapsedMs += Math.round(seconds * 1000)
      await setDatabaseTime(database.db, startMs + elapsedMs)
      // Otherwise the host counts as dead until its next heartbeat.
      await watchHosts.run(hosted.deps)
    },
  }
}

/** The documented prices in 10^-12 credits per second. */
const VCPU = 1_004_550_000n
const MEMORY = 321_950_000n
const DISK = 4_400_000n

export type Usage = { kind: UsageKind; shape: string; diskMib: number; us: bigint }

/** Whole micro-credits for all this usage together. */
export const costOf = (usage: Usage[]): number =>
  Number(usage.reduce((sum, one) => sum + unitsOf(one), 0n) / UNITS_PER_MICRO)

function unitsOf({ kind, shape, diskMib, us }: Usage): bigint {
  const { cpu_quota_pct, mem_mib } = findShape(shape)!
  const vcpu = kind === 'running' ? BigInt(cpu_quota_pct) * VCPU * 256n : 0n
  const memory = kind === 'error' ? 0n : BigInt(mem_mib) * MEMORY * 25n
  return (vcpu + memory + BigInt(diskMib) * DISK * 25n) * us
}
