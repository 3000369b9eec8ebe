/** What a check of the doctor is, and how a list of them is run. */

/** `required`: Warren cannot start without it. `recommended`: a part of Warren waits until it is there. */
export type Needed = 'required' | 'recommended'

export type CheckResult =
  /** `note` is for what works but should be known, such as little room on a disk. */
  { ok: true; detail: string; note?: string } | { ok: false; detail: string; fix: string }

/** Checks only look: they change nothing on the machine that outlives them. */
export type Check = {
  name: string
  needed: Needed
  run(signal: AbortSignal): Promise<CheckResult>
}

export type CheckOutcome = { name: string; needed: Needed } & CheckResult

/** What the checks are told about where they run. */
export type Machine = { env: NodeJS.ProcessEnv; isRoot: boolean }

/** The whole doctor answers within about 5 s, whatever hangs. */
const CHECK_LIMIT_MS = 4_500

/** All at once; the outcomes are in the order of the checks. */
export function runChecks(checks: readonly Check[], limitMs = CHECK_LIMIT_MS): Promise<CheckOutcome[]> {
  return Promise.all(
    checks.map(async (check) => ({ name: check.name, needed: check.needed, ...(await runCheck(check, limitMs)) })),
  )
}

async function runCheck(check: Check, limitMs: number): Promise<CheckResult> {
  const limit = new AbortController()
  const tooLate = Promise.withResolvers<CheckResult>()
  const timer = setTimeout(() => {
    tooLate.resolve({ ...UNKNOWN, detail: `no answer within ${limitMs} ms` })
    limit.abort()
  }, limitMs)
  try {
    return await Promise.race([check.run(limit.signal), tooLate.promise])
  } catch (error) {
    return { ...UNKNOWN, detail: `the check itself failed: ${error instanceof Error ? error.message : String(error)}` }
  } finally {
    clearTimeout(timer)
  }
}

const UNKNOWN = { ok: false, fix: 'run the doctor again; if it stays, please report it with this line' } as const
