/**
 * The instances that a test run starts. `npm test` passes the file on; from it the runner knows which namespaces, cgroups
 * and folders belong to its run, also when a test or the whole run was killed (tools/test-run/leftovers.ts).
 */
import { appendFileSync } from 'node:fs'

export const LEDGER_VARIABLE = 'WARREN_TEST_LEDGER'

/** Called before anything is created that carries the name of the instance. */
export function recordInstance(instance: string): void {
  const file = process.env[LEDGER_VARIABLE]
  if (file !== undefined) appendFileSync(file, `${instance}\n`)
}
