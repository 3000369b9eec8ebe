/** Defines a check of the doctor and runs a list of them. */

/** `required`: Warren cannot start without it. `recommended`: some feature of Warren does not work without it. */
export type Needed = 'required' | 'recommended'

export type CheckResult =
  /** `note` is for a check that passes with a reservation, such as little space on a disk. */
  { ok: true; detail: string; note?: string } | { ok: false; detail: string; fix: string }

/** A check must leave no change on the machine. */
export type Check = {
  name: string
  needed: Needed
  run(signal: AbortSignal): Promise<CheckResult>
}

export type CheckOutcome = { name: string; needed: Needed } & CheckResult

/** The environment that the checks examine. */
export type Machine = { env: NodeJS.ProcessEnv; isRoot: boolean }

/** The doctor finishes within about 5 s even if a check hangs. */
const CHECK_LIMIT_MS = 4_500

/** Runs all checks concurrently. The outcomes have the order of the checks. */
export function runChecks(checks: readonly Check[], limitMs = CHECK_LIMIT_MS): Promise<CheckOutcome[]> {
  return Promise.all(
    checks.map(async (check) => ({ name: check.name, needed: check.needed, ...(await runCheck(check, limitMs)) })),
  )
}

async function runCheck(check: Check, limitMs: number): Promise<CheckResult> {
  const limit = new AbortController()
  const timeout = Promise.withResolvers<CheckResult>()
  const timer = setTimeout(() => {
    timeout.resolve({ ...UNKNOWN, detail: `timed out after ${limitMs} ms` })
    limit.abort()
  }, limitMs)
  try {
    return await Promise.race([check.run(limit.signal), timeout.promise])
  } catch (error) {
    return { ...UNKNOWN, detail: `the check itself failed: ${error instanceof Error ? error.message : String(error)}` }
  } finally {
    clearTimeout(timer)
  }
}

const UNKNOWN = { ok: false, fix: 'run the doctor again; if it fails again, please report it with this line' } as const
