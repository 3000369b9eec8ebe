/**
 * The auto-pause protocol against a model: random sequences of what several processes do to two sandboxes, with every
 * step of the protocol as a separate command, on a real database. docs/decisions/0021-auto-pause-protocol.md describes
 * the protocol.
 *
 * The invariants:
 *
 *   - A sandbox is paused only when every use that the protocol protects, and the last change of the limit, is at least
 *     its idle limit ago.
 *   - A use that was admitted found the sandbox running; one that was rejected did not.
 *   - A flush writes each use with the time at which it happened, or later.
 *   - When uses end, every sandbox is paused in the end.
 *
 * Time is a value of the test. The database and all processes read it, so nothing here waits.
 */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { sql } from 'kysely'
import type { SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { createActivity, flushActivity } from '../guest/activity.ts'
import { withGuest } from '../guest/with-guest.ts'
import { DEAD_AFTER_S, releaseJobsOfDeadProcesses, removeProcess, writeHeartbeat } from '../jobs/processes.ts'
import { createTestApp, createTestDeps } from '../testing/app.ts'
import { createDatabaseWithTestClock, setDatabaseTime } from '../testing/database-with-clock.ts'
import { createGate, createGatedDb, type Gate } from '../testing/gated-db.ts'
import { insertSandbox } from '../testing/sandboxes.ts'
import { autoPause } from './auto-pause.ts'
import { patchSandbox } from './patch.ts'

const RUNS = Number(process.env.WARREN_PROPERTY_RUNS ?? 80)
const PROCESSES = 3
const LIMITS_S = [60, 90]
/** How old a row may be when a request uses it. */
const ROW_AGE_MAX_S = 10

const { deps: base, user } = await createTestApp({
  database: await createDatabaseWithTestClock(),
  watchCredentials: false,
})
const { id: userId } = await user()

let nowMs = Date.UTC(2026, 0, 1)
async function setTime(ms: number): Promise<void> {
  nowMs = ms
  await setDatabaseTime(base.db, ms)
}

/** What a process has done that the protocol must know of. Times are in milliseconds. */
type ProcessModel = {
  seenAt: number
  suspended: boolean
  /** By sandbox: the last protected use that is not written yet. */
  unwritten: Map<number, number>
  /** By sandbox: uses in progress. */
  inProgress: Map<number, number>
  /** By sandbox: when its row was read, if it was running then. */
  runningRowReadAt: Map<number, number>
  flush: undefined | { step: 'clock read' | 'drained'; drained: Map<number, number> }
}

type SandboxModel = {
  running: boolean
  limitMs: number
  /** The owner's last change of the limit, which starts the idle time again. */
  limitSetAt: number
  writtenAt: number
}

type Model = { sandboxes: SandboxModel[]; processes: (ProcessModel | undefined)[] }

/** The same process and its memory. */
type RealProcess = {
  deps: Deps
  rows: Map<number, SandboxRow>
  endUse: Map<number, (() => Promise<void>)[]>
  flush: undefined | { gate: Gate; done: Promise<void> }
}
type Real = { ids: string[]; processes: (RealProcess | undefined)[] }

type Command = fc.AsyncCommand<Model, Real>

const command = (
  name: string,
  check: (model: Model) => boolean,
  run: (model: Model, real: Real) => Promise<void>,
): Command => ({ check, run, toString: () => name })

const active = (model: Model, p: number): ProcessModel | undefined => {
  const process = model.processes[p]
  return process?.suspended ? undefined : process
}

// --- What processes do ------------------------------------------------------------------------------------------

const start = (p: number, clockErrorS: number): Command =>
  command(
    `start(${p}, clock ${clockErrorS} s off)`,
    (model) => model.processes[p] === undefined,
    async (model, real) => {
      real.processes[p] = await startProcess(clockErrorS)
      model.processes[p] = newProcessModel()
    },
  )

/** Everything in memory is lost, and a flush in progress writes nothing. */
const crash = (p: number): Command =>
  command(
    `crash(${p})`,
    (model) => model.processes[p] !== undefined,
    async (model, real) => {
      await real.processes[p]!.flush?.gate.fail()
      await real.processes[p]!.flush?.done.catch(() => {})
      real.processes[p] = undefined
      model.processes[p] = undefined
    },
  )

/** Uses end, the last flush writes them, and the process removes itself. */
const stop = (p: number): Command =>
  command(
    `stop(${p})`,
    (model) => active(model, p) !== undefined && active(model, p)!.flush === undefined,
    async (model, real) => {
      for (const s of LIMITS_S.keys()) while (model.processes[p]!.inProgress.has(s)) await endOneUse(model, real, p, s)
      do await flushStep(model, real, p)
      while (model.processes[p]!.flush)
      await removeProcess(real.processes[p]!.deps)
      real.processes[p] = undefined
      model.processes[p] = undefined
    },
  )

/** As by SIGSTOP, or a machine that is out of memory: it does nothing, and writes no heartbeats. */
const suspend = (p: number): Command =>
  command(
    `suspend(${p})`,
    (model) => active(model, p) !== undefined,
    async (model) => {
      model.processes[p]!.suspended = true
    },
  )

const unsuspend = (p: number): Command =>
  command(
    `unsuspend(${p})`,
    (model) => model.processes[p]?.suspended === true,
    async (model) => {
      model.processes[p]!.suspended = false
    },
  )

const readRow = (p: number, s: number): Command =>
  command(
    `readRow(${p}, ${s})`,
    (model) => active(model, p) !== undefined,
    (model, real) => readOneRow(model, real, p, s),
  )

/** With the row that the process has read, unless that is too old. */
const beginUse = (p: number, s: number): Command =>
  command(
    `beginUse(${p}, ${s})`,
    (model) => nowMs - (active(model, p)?.runningRowReadAt.get(s) ?? 0) <= ROW_AGE_MAX_S * 1000,
    (model, real) => beginOneUse(model, real, p, s),
  )

/** Reads the row and uses it at once, as nearly all requests do. */
const request = (p: number, s: number): Command =>
  command(
    `request(${p}, ${s})`,
    (model) => active(model, p) !== undefined,
    async (model, real) => {
      await readOneRow(model, real, p, s)
      await beginOneUse(model, real, p, s)
    },
  )

const endUse = (p: number, s: number): Command =>
  command(
    `endUse(${p}, ${s})`,
    (model) => active(model, p)?.inProgress.has(s) === true,
    (model, real) => endOneUse(model, real, p, s),
  )

/** Bytes through a connection that is open: recorded without asking the database. */
const transferBytes = (p: number, s: number): Command =>
  command(
    `transferBytes(${p}, ${s})`,
    (model) => active(model, p) !== undefined && model.sandboxes[s]!.running,
    async (model, real) => {
      real.processes[p]!.deps.activity.recordUse(real.ids[s]!)
      // When the idle time is over already, the pause may have been decided: such a use is not protected.
      const { writtenAt, limitMs } = model.sandboxes[s]!
      if (nowMs < writtenAt + limitMs) model.processes[p]!.unwritten.set(s, nowMs)
    },
  )

const flush = (p: number): Command =>
  command(
    `flush(${p})`,
    (model) => active(model, p) !== undefined,
    (model, real) => flushStep(model, real, p),
  )

const flushWhole = (p: number): Command =>
  command(
    `flushWhole(${p})`,
    (model) => active(model, p) !== undefined,
    async (model, real) => {
      do await flushStep(model, real, p)
      while (model.processes[p]!.flush)
    },
  )

const flushAll: Command = command(
  'flushAll()',
  () => true,
  async (model, real) => {
    for (const p of model.processes.keys()) if (active(model, p)) await flushWhole(p).run(model, real)
  },
)

/** The database rejects the write, or the connection breaks. */
const failFlush = (p: number): Command =>
  command(
    `failFlush(${p})`,
    (model) => active(model, p) !== undefined,
    async (model, real) => {
      while (model.processes[p]!.flush?.step !== 'drained') await flushStep(model, real, p)
      const { gate, done } = real.processes[p]!.flush!
      gate.fail()
      await assert.rejects(done)
      const process = model.processes[p]!
      for (const [s, at] of process.flush!.drained) {
        process.unwritten.set(s, Math.max(process.unwritten.get(s) ?? at, at))
      }
      process.flush = undefined
      real.processes[p]!.flush = undefined
    },
  )

const pauseIdle = (p: number): Command =>
  command(
    `pauseIdle(${p})`,
    (model) => active(model, p) !== undefined,
    async (model, real) => {
      await autoPause.run(real.processes[p]!.deps)
      await checkPaused(model, real)
    },
  )

const removeDead = (p: number): Command =>
  command(
    `removeDead(${p})`,
    (model) => active(model, p) !== undefined,
    (_model, real) => releaseJobsOfDeadProcesses.run(real.processes[p]!.deps),
  )

// --- What users and time do -------------------------------------------------------------------------------------

const resume = (s: number): Command =>
  command(
    `resume(${s})`,
    (model) => !model.sandboxes[s]!.running,
    async (model, real) => {
      await sql`update sandboxes set status = 'running', last_active_at = test_clock.now()
        where id = ${real.ids[s]}`.execute(base.db)
      model.sandboxes[s]!.running = true
      await readWritten(model, real)
    },
  )

const setLimit = (p: number, s: number, seconds: number): Command =>
  command(
    `setLimit(${p}, ${s}, ${seconds})`,
    (model) => active(model, p) !== undefined,
    async (model, real) => {
      const { deps } = real.processes[p]!
      await patchSandbox(deps, await findRow(real, s), { auto_pause_after_seconds: seconds })
      const sandbox = model.sandboxes[s]!
      // A repeated PATCH with the same limit changes nothing.
      if (sandbox.limitMs !== seconds * 1000) Object.assign(sandbox, { limitMs: seconds * 1000, limitSetAt: nowMs })
      await readWritten(model, real)
    },
  )

/** Processes write heartbeats all the time, so after it every one that is not suspended has written one. */
const advance = (seconds: number): Command =>
  command(
    `advance(${seconds})`,
    () => true,
    (model, real) => advanceTime(model, real, seconds),
  )

/** To some seconds before or after the moment at which, as far as the database knows, the idle time ends. */
const advanceToIdleEnd = (s: number, seconds: number): Command => {
  const remainingS = (model: Model) => {
    const { writtenAt, limitMs } = model.sandboxes[s]!
    return (writtenAt + limitMs - nowMs) / 1000 + seconds
  }
  return command(
    `advanceToIdleEnd(${s}, ${seconds})`,
    (model) => remainingS(model) > 0,
    (model, real) => advanceTime(model, real, remainingS(model)),
  )
}

// --- The test ---------------------------------------------------------------------------------------------------

/** Mostly the first two, so that their commands meet. */
const anyProcess = fc.constantFrom(0, 0, 1, 1, 2)
const anySandbox = fc.constantFrom(0, 0, 1)
const anyClockErrorS = fc.constantFrom(0, -3600, 3600)
const both = fc.tuple(anyProcess, anySandbox)
const times = <T>(count: number, arbitrary: fc.Arbitrary<T>): fc.Arbitrary<T>[] => Array(count).fill(arbitrary)

const commands = fc.commands(
  [
    ...times(
      3,
      fc.tuple(anyProcess, anyClockErrorS).map(([p, clockErrorS]) => start(p, clockErrorS)),
    ),
    anyProcess.map(crash),
    anyProcess.map(stop),
    anyProcess.map(suspend),
    ...times(3, anyProcess.map(unsuspend)),
    both.map(([p, s]) => readRow(p, s)),
    both.map(([p, s]) => beginUse(p, s)),
    ...times(
      5,
      both.map(([p, s]) => request(p, s)),
    ),
    ...times(
      6,
      both.map(([p, s]) => endUse(p, s)),
    ),
    ...times(
      3,
      both.map(([p, s]) => transferBytes(p, s)),
    ),
    ...times(3, anyProcess.map(flush)),
    ...times(2, anyProcess.map(flushWhole)),
    ...times(4, fc.constant(flushAll)),
    ...times(3, anyProcess.map(failFlush)),
    ...times(6, anyProcess.map(pauseIdle)),
    anyProcess.map(removeDead),
    ...times(4, anySandbox.map(resume)),
    ...times(
      3,
      fc.tuple(both, fc.constantFrom(60, 90, 3600)).map(([[p, s], limitS]) => setLimit(p, s, limitS)),
    ),
    ...times(3, fc.constantFrom(1, 3, 5, 15, 25, 35, 61).map(advance)),
    ...times(
      5,
      fc.tuple(anySandbox, fc.integer({ min: -22, max: 3 })).map(([s, offsetS]) => advanceToIdleEnd(s, offsetS)),
    ),
  ],
  { maxCommands: 100, size: 'max' },
)

test('no sandbox is paused within its idle time, and every idle one is paused', async () => {
  await fc.assert(fc.asyncProperty(anyClockErrorS, commands, runCommands), { numRuns: RUNS })
})

test('a limit that is shorter than the sandbox has been idle counts from its change', async () => {
  await runCommands(0, [setLimit(0, 0, 3600), advance(61), setLimit(0, 0, 60), flushAll, pauseIdle(0)])
})

test('a use that was far from the end of the old limit counts although it is not written yet', async () => {
  const idle = [setLimit(0, 0, 3600), advance(61), flushAll]
  await runCommands(0, [...idle, request(0, 0), endUse(0, 0), setLimit(0, 0, 60), pauseIdle(0)])
})

async function runCommands(clockErrorS: number, sequence: Iterable<Command>): Promise<void> {
  const { model, real } = await createWorld(clockErrorS)
  try {
    await fc.asyncModelRun(() => ({ model, real }), sequence)
    await endAllUses(model, real)
    await checkAllPaused(model, real)
  } finally {
    await removeWorld(real)
  }
}

async function createWorld(clockErrorS: number): Promise<{ model: Model; real: Real }> {
  await setTime(nowMs + 24 * 3600_000)
  const ids: string[] = []
  for (const seconds of LIMITS_S) {
    const more = { auto_pause_after_seconds: seconds, last_active_at: new Date(nowMs) }
    ids.push((await insertSandbox(base.db, userId, 'running', more)).id)
  }
  const sandboxes = LIMITS_S.map((seconds) => ({
    running: true,
    limitMs: seconds * 1000,
    limitSetAt: nowMs,
    writtenAt: nowMs,
  }))
  const real: Real = { ids, processes: Array(PROCESSES).fill(undefined) }
  const model: Model = { sandboxes, processes: Array(PROCESSES).fill(undefined) }
  // One process from the start, or most sequences would do little.
  real.processes[0] = await startProcess(clockErrorS)
  model.processes[0] = newProcessModel()
  return { model, real }
}

async function removeWorld(real: Real): Promise<void> {
  for (const one of real.processes) {
    one?.flush?.gate.fail()
    await one?.flush?.done.catch(() => {})
  }
  await base.db.deleteFrom('service_processes').execute()
  await base.db.updateTable('sandboxes').set({ status: 'destroyed' }).where('id', 'in', real.ids).execute()
}

// --- Steps that commands share ----------------------------------------------------------------------------------

const newProcessModel = (): ProcessModel => ({
  seenAt: nowMs,
  suspended: false,
  unwritten: new Map(),
  inProgress: new Map(),
  runningRowReadAt: new Map(),
  flush: undefined,
})

async function startProcess(clockErrorS: number): Promise<RealProcess> {
  const deps = createTestDeps(base.database)
  deps.activity = createActivity(() => nowMs)
  deps.now = () => new Date(nowMs + clockErrorS * 1000)
  await writeHeartbeat(deps, [])
  return { deps, rows: new Map(), endUse: new Map(), flush: undefined }
}

const findRow = (real: Real, s: number): Promise<SandboxRow> =>
  base.db.selectFrom('sandboxes').selectAll().where('id', '=', real.ids[s]!).executeTakeFirstOrThrow()

/** Returns whether the use was admitted. It is then in progress until the function in `endUse` is called. */
async function beginRealUse({ deps, rows, endUse }: RealProcess, s: number): Promise<boolean> {
  const ended = Promise.withResolvers<void>()
  const admitted = Promise.withResolvers<boolean>()
  const use = withGuest(deps, rows.get(s)!, () => {
    admitted.resolve(true)
    return ended.promise
  }).catch(() => admitted.resolve(false))
  endUse.set(s, [
    ...(endUse.get(s) ?? []),
    async () => {
      ended.resolve()
      await use
    },
  ])
  if (await admitted.promise) return true
  endUse.get(s)!.pop()
  return false
}

async function readOneRow(model: Model, real: Real, p: number, s: number): Promise<void> {
  const row = await findRow(real, s)
  real.processes[p]!.rows.set(s, row)
  if (row.status === 'running') model.processes[p]!.runningRowReadAt.set(s, nowMs)
  else model.processes[p]!.runningRowReadAt.delete(s)
}

async function beginOneUse(model: Model, real: Real, p: number, s: number): Promise<void> {
  const { inProgress } = model.processes[p]!
  const admitted = await beginRealUse(real.processes[p]!, s)
  const { status } = await findRow(real, s)
  if (!admitted) return assert.notEqual(status, 'running', 'a running sandbox rejected a use')
  assert.equal(status, 'running', 'a sandbox that is not running admitted a use')
  inProgress.set(s, (inProgress.get(s) ?? 0) + 1)
  await readWritten(model, real)
}

async function endOneUse(model: Model, real: Real, p: number, s: number): Promise<void> {
  await real.processes[p]!.endUse.get(s)!.pop()!()
  const { inProgress, unwritten } = model.processes[p]!
  const remaining = inProgress.get(s)! - 1
  if (remaining === 0) inProgress.delete(s)
  else inProgress.set(s, remaining)
  unwritten.set(s, nowMs)
}

/** A flush takes three of these: the clock is read, the uses are taken, all is written. */
async function flushStep(model: Model, real: Real, p: number): Promise<void> {
  const process = model.processes[p]!
  const realProcess = real.processes[p]!
  if (!process.flush) {
    const gate = createGate()
    const done = flushActivity.run({ ...realProcess.deps, db: createGatedDb(base.database, gate) })
    done.catch(() => {}) // Awaited by the command that ends it.
    realProcess.flush = { gate, done }
    await gate.reached('after statement 1')
    process.flush = { step: 'clock read', drained: new Map() }
    return
  }
  const { gate, done } = realProcess.flush!
  if (process.flush.step === 'clock read') {
    gate.release()
    await gate.reached('before statement 2')
    const drained = new Map(process.unwritten)
    for (const s of process.inProgress.keys()) drained.set(s, nowMs)
    process.unwritten = new Map()
    process.flush = { step: 'drained', drained }
    return
  }
  gate.release()
  await done
  await readWritten(model, real)
  for (const [s, at] of process.flush.drained) {
    assert.ok(
      model.sandboxes[s]!.writtenAt >= at,
      `use of sandbox ${s} at ${at} was written as ${model.sandboxes[s]!.writtenAt}`,
    )
  }
  process.flush = undefined
  realProcess.flush = undefined
}

async function readWritten(model: Model, real: Real): Promise<void> {
  for (const [s, sandbox] of model.sandboxes.entries()) {
    sandbox.writtenAt = (await findRow(real, s)).last_active_at!.getTime()
  }
}

async function advanceTime(model: Model, real: Real, seconds: number): Promise<void> {
  await setTime(nowMs + seconds * 1000)
  for (const [p, process] of model.processes.entries()) {
    if (!process || process.suspended) continue
    await writeHeartbeat(real.processes[p]!.deps, [])
    process.seenAt = nowMs
  }
}

async function checkPaused(model: Model, real: Real): Promise<void> {
  for (const [s, sandbox] of model.sandboxes.entries()) {
    if (!sandbox.running || (await findRow(real, s)).status === 'running') continue
    sandbox.running = false
    const idleMs = nowMs - lastProtectedUse(model, s)
    assert.ok(idleMs >= sandbox.limitMs, `sandbox ${s} was paused after ${idleMs} of ${sandbox.limitMs} ms`)
  }
}

/** What is written, the last change of the limit, and the uses of every process that counts as live. */
function lastProtectedUse(model: Model, s: number): number {
  const times = [model.sandboxes[s]!.writtenAt, model.sandboxes[s]!.limitSetAt]
  for (const process of model.processes) {
    if (!process || process.seenAt <= nowMs - DEAD_AFTER_S * 1000) continue
    if (process.inProgress.has(s)) times.push(nowMs)
    times.push(process.unwritten.get(s) ?? 0, process.flush?.drained.get(s) ?? 0)
  }
  return Math.max(...times)
}

async function endAllUses(model: Model, real: Real): Promise<void> {
  for (const [p, process] of model.processes.entries()) {
    if (!process) continue
    process.suspended = false
    for (const s of LIMITS_S.keys()) while (process.inProgress.has(s)) await endOneUse(model, real, p, s)
    while (process.flush) await flushStep(model, real, p)
  }
}

/** Two flushes each: the watermark of the first may be a moment at which a use was still in progress. */
async function checkAllPaused(model: Model, real: Real): Promise<void> {
  const last = await startProcess(0)
  for (let round = 0; round < 2; round++) {
    await advanceTime(model, real, 3601)
    await writeHeartbeat(last.deps, [])
    for (const one of [...real.processes, last]) if (one) await flushActivity.run(one.deps)
  }
  await autoPause.run(last.deps)
  await checkPaused(model, real)
  assert.ok(
    model.sandboxes.every((sandbox) => !sandbox.running),
    'an idle sandbox was not paused',
  )
}
