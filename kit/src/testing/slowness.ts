/**
 * Time limits of tests are chosen for a quiet machine. `npm test` measures how much slower the machine is at the start of
 * the run (tools/test-run/measure-slowness.ts) and passes the factor on; a test file that is run alone uses 1.
 */
export const SLOWNESS_VARIABLE = 'WARREN_TEST_SLOWNESS'

/** At least 1. */
export const SLOWNESS = Math.max(Number(process.env[SLOWNESS_VARIABLE]) || 1, 1)

export const scaleLimit = (limitMs: number): number => Math.round(limitMs * SLOWNESS)
