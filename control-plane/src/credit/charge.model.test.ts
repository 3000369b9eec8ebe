/**
 * Credit against a model: random sequences of create, pause, resume, resize, delete, top-ups, recharges, changes of plan and
 * passing time, while a separate process runs the jobs and charges, and is killed with SIGKILL again and again.
 *
 * The model only knows which sandbox had which status and size from when to when. After every step, and after every kill,
 * the ledger must be the sum of that usage at the documented prices, to the micro-credit.
 *
 * Time is a value of the test, in the database. It does not pass during a step, so the model knows when each change of
 * status happened: if a kill has delayed it, after the time has been moved on.
 */
import assert from 'node:assert/strict'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { after, test } from 'node:test'
import { passTime } from '@warren/kit/testing/pass-time'
import { until } from '@warren/kit/testing/until'
import fc from 'fast-check'
import { sql } from 'kysely'
import { DEAD_AFTER_S } from '../jobs/processes.ts'
import type { TestUser } from '../testing/app.ts'
import { type ChargeProcess, startChargeProcess } from '../testing/charge-process.ts'
import { costOf, createClockedApp, type Usage } from '../testing/credit-clock.ts'
import type { PlanName } from '../users/plans.ts'
import { addCredit } from './add.ts'
import { verifyCredit } from './verify.ts'

const RUNS = Number(process.env.WARREN_PROPERTY_RUNS ?? 1)
/** A kill takes seconds, the other steps take milliseconds. */
const STEPS_PER_KILL = 9
const START_MICRO = 500_000_000
/** Of plan pro. */
const LARGEST_DISK_MIB = 51_200

const clocked = await createClockedApp({ host: { memMib: 100_000_000 }, startWorker: false })
const { deps, user, create, send, advance, time } = clocked
const crashPoints = await mkdtemp(path.join(tmpdir(), 'warren-charge-'))
after(() => rm(crashPoints, { recursive: true, force: true }))

const SHAPES = ['s-0.25vcpu-512mb', 's-0.5vcpu-1gb', 's-1vcpu-256mb', 's-2vcpu-4gb', 's-4vcpu-8gb']
/** Each kill is at the next one of these. */
const KILLS = [
  'charge.entered',
  'pause.saved',
  'charge.committed',
  'any moment',
  'charge.locked',
  'resume.restored',
  'pause.started',
  'any moment',
  'resume.started',
  'pause.done',
  'resume.done',
] as const

type Status = 'running' | 'paused' | 'destroyed'
type SandboxModel = { id: string; shape: string; diskMib: number; status: Status; since: bigint }
type Model = {
  owner: TestUser
  plan: PlanName
  sandboxes: SandboxModel[]
  /** Usage of the past. That of the current status is added when it is compared. */
  usage: Usage[]
  addedMicro: number
}

const second = fc.integer({ min: 1_000, max: 4_000_000 }).map((ms) => ms / 1000)
const which = fc.nat(20)
const step = fc.oneof(
  { weight: 4, arbitrary: fc.record({ do: fc.constant('create' as const), shape: fc.constantFrom(...SHAPES) }) },
  { weight: 4, arbitrary: fc.record({ do: fc.constant('pause' as const), which }) },
  { weight: 4, arbitrary: fc.record({ do: fc.constant('resume' as const), which }) },
  { weight: 3, arbitrary: fc.record({ do: fc.constant('resize' as const), which }) },
  { weight: 1, arbitrary: fc.record({ do: fc.constant('delete' as const), which }) },
  {
    weight: 2,
    arbitrary: fc.record({ do: fc.constant('credit' as const), credits: fc.integer({ min: -200, max: 300 }) }),
  },
  { weight: 1, arbitrary: fc.record({ do: fc.constant('recharge' as const), which }) },
  { weight: 3, arbitrary: fc.record({ do: fc.constant('change plan' as const) }) },
  { weight: 6, arbitrary: fc.record({ do: fc.constant('pass' as const), seconds: second }) },
)
const kill = fc.record({
  do: fc.constant('kill' as const),
  which,
  seconds: second,
  afterMs: fc.integer({ min: 0, max: 25 }),
})
type Kill = typeof kill extends fc.Arbitrary<infer K> ? K : never
type Step = Kill | (typeof step extends fc.Arbitrary<infer S> ? S : never)

const kills: string[] = []
let worker = await startChargeProcess(clocked, crashPoints)
await worker.begin()
let successor: Promise<ChargeProcess> = startChargeProcess(clocked, crashPoints)

const sequence = fc.tuple(
  ...Array.from(
    { length: STEPS_PER_KILL * KILLS.length },
    (_, n) => ((n + 1) % STEPS_PER_KILL === 0 ? kill : step) as fc.Arbitrary<Step>,
  ),
)

test(`the ledger is the sum of usage, whatever happens (${RUNS} sequences)`, async (t) => {
  await fc.assert(
    fc.asyncProperty(sequence, async (steps) => {
      const model: Model = { owner: await user(), plan: 'pro', sandboxes: [], usage: [], addedMicro: START_MICRO }
      for (const one of steps) {
        await take(model, one)
        await assertLedger(model)
      }
      for (const { status } of model.sandboxes) if (status !== 'destroyed') await destroy(model, 0)
    }),
    { numRuns: RUNS, endOnFailure: true },
  )
  t.diagnostic(`${kills.length} kills: ${kills.join(', ')}`)
  assert.deepEqual(new Set(kills), new Set(KILLS))
  await worker.kill()
  await (await successor).kill()
})

async function take(model: Model, one: Step): Promise<void> {
  switch (one.do) {
    case 'create':
      return createOne(model, one.shape)
    case 'pause':
      return move(model, 'pause', one.which)
    case 'resume':
      return move(model, 'resume', one.which)
    case 'resize':
      return resize(model, one.which)
    case 'delete':
      return destroy(model, one.which)
    case 'credit':
      return addCredits(model, one.credits)
    case 'recharge':
      return recharge(model, one.which)
    case 'change plan':
      return setPlan(model, model.plan === 'local' ? 'pro' : 'local')
    case 'pass':
      await advance(one.seconds)
      return settle(model)
    case 'kill':
      return killOne(model, one)
  }
}

async function setPlan(model: Model, plan: PlanName): Promise<void> {
  for (const sandbox of model.sandboxes) setStatus(model, sandbox, sandbox.status)
  model.plan = plan
  await deps.db.updateTable('users').set({ plan }).where('id', '=', model.owner.id).execute()
}

async function addCredits(model: Model, credits: number): Promise<void> {
  model.addedMicro += credits * 1_000_000
  await deps.db
    .transaction()
    .execute((tx) => addCredit(tx, model.owner.id, credits, { kind: 'adjustment', reason: 'test' }))
}

const pick = (model: Model, status: Status, n: number): SandboxModel | undefined => {
  const found = model.sandboxes.filter((sandbox) => sandbox.status === status)
  return found[n % Math.max(1, found.length)]
}

/** The current status ends now, and its usage is added. */
function setStatus(model: Model, sandbox: SandboxModel, status: Status): void {
  model.usage.push(...usageSince(model, sandbox))
  sandbox.since = time()
  sandbox.status = status
}

function usageSince(model: Model, { status, shape, diskMib, since }: SandboxModel): Usage[] {
  if (status === 'destroyed' || model.plan === 'local') return []
  return [{ kind: status, shape, diskMib, us: time() - since }]
}

const balanceOf = (model: Model): number =>
  model.addedMicro - costOf([...model.usage, ...model.sandboxes.flatMap((one) => usageSince(model, one))])

const isPoor = (model: Model): boolean => model.plan !== 'local' && balanceOf(model) <= 0

async function createOne(model: Model, shape: string): Promise<void> {
  if (model.sandboxes.filter(({ status }) => status !== 'destroyed').length >= 20) return
  const { status, body } = await create(model.owner, { shape })
  assert.equal(status, isPoor(model) ? 402 : 200, JSON.stringify(body))
  if (status === 200)
    model.sandboxes.push({ id: body.data.id, shape, diskMib: 10_240, status: 'running', since: time() })
}

async function move(model: Model, verb: 'pause' | 'resume', n: number): Promise<void> {
  const sandbox = pick(model, verb === 'pause' ? 'running' : 'paused', n)
  if (!sandbox || !(await ask(model, verb, sandbox))) return
  const status = verb === 'pause' ? 'paused' : 'running'
  await until(async () => (await statusOf(sandbox.id)) === status, `${sandbox.id} is ${status}`, 60_000)
  setStatus(model, sandbox, status)
}

/** Returns false when the request is refused because there is no credit. */
async function ask(model: Model, verb: 'pause' | 'resume', { id }: SandboxModel): Promise<boolean> {
  const { status, body } = await send('POST', `/v1/sandboxes/${id}/${verb}`, model.owner)
  assert.equal(status, verb === 'resume' && isPoor(model) ? 402 : 202, JSON.stringify(body))
  return status === 202
}

async function resize(model: Model, n: number): Promise<void> {
  const sandbox = pick(model, 'running', n)
  if (!sandbox || sandbox.diskMib === LARGEST_DISK_MIB) return
  const disk_mib = sandbox.diskMib + 10_240
  const { status, body } = await send('POST', `/v1/sandboxes/${sandbox.id}/resize`, model.owner, { disk_mib })
  assert.equal(status, 200, JSON.stringify(body))
  setStatus(model, sandbox, 'running')
  sandbox.diskMib = disk_mib
}

async function destroy(model: Model, n: number): Promise<void> {
  const sandbox = pick(model, 'running', n) ?? pick(model, 'paused', n)
  if (!sandbox) return
  assert.equal((await send('DELETE', `/v1/sandboxes/${sandbox.id}`, model.owner)).status, 200)
  setStatus(model, sandbox, 'destroyed')
}

async function recharge(model: Model, n: number): Promise<void> {
  const sandbox = pick(model, 'running', n)
  if (!sandbox) return
  const affordable = model.plan === 'local' || balanceOf(model) >= 1_000_000
  const { status } = await send('POST', `/v1/sandboxes/${sandbox.id}/bandwidth/recharge`, model.owner, { add_bytes: 1 })
  assert.equal(status, affordable ? 200 : 402)
  if (status === 200 && model.plan !== 'local') model.addedMicro -= 1_000_000
}

async function killOne(model: Model, { which, seconds, afterMs }: Kill): Promise<void> {
  const point = KILLS[kills.length % KILLS.length]!
  kills.push(point)
  const verb = point.startsWith('pause.') ? 'pause' : point.startsWith('resume.') ? 'resume' : undefined
  const sandbox = await prepareKill(model, verb, which)
  const file = path.join(crashPoints, point)
  if (point !== 'any moment') await writeFile(file, 'kill')
  if (verb) await ask(model, verb, sandbox)
  else await advance(seconds)

  if (point !== 'any moment') await worker.waitForEnd(`the process reaches ${point}`, 60_000)
  else await passTime(afterMs, 'the moment of the kill is the input of the test')
  await worker.kill()
  await until(noStatementRuns, 'the database has ended what the process began')
  assert.deepEqual(await verifyCredit(deps.db), [], `after a kill at ${point}`)
  await recordStatuses(model)

  worker = await successor
  successor = startChargeProcess(clocked, crashPoints)
  await advance(DEAD_AFTER_S + 2)
  await worker.begin()
  await settle(model)
}

/** A kill during a charge needs usage to charge, and one during a move a sandbox that can make it. */
async function prepareKill(model: Model, verb: 'pause' | 'resume' | undefined, which: number): Promise<SandboxModel> {
  if (model.plan === 'local') await setPlan(model, 'pro')
  if (balanceOf(model) <= 0) await addCredits(model, 1 - Math.floor(balanceOf(model) / 1_000_000))
  if (!pick(model, 'running', 0)) {
    if (pick(model, 'paused', 0)) await move(model, 'resume', which)
    else await createOne(model, SHAPES[0]!)
  }
  if (verb === 'resume' && !pick(model, 'paused', 0)) await move(model, 'pause', which)
  return pick(model, verb === 'resume' ? 'paused' : 'running', which)!
}

/** Waits until the process has charged everything and no operation is in progress; then time has passed for nothing. */
async function settle(model: Model): Promise<void> {
  await until(async () => (await countUncharged(model)) === 0, 'all usage is charged', 60_000)
  await until(async () => await isQuiet(model), 'no operation is in progress', 60_000)
  await recordStatuses(model)
}

async function isQuiet(model: Model): Promise<boolean> {
  const statuses = [...(await readStatuses(model)).values()]
  if (statuses.some((status) => ['pausing', 'resuming'].includes(status))) return false
  return !isPoor(model) || !statuses.includes('running')
}

/** Operations that ended in between did so at the current time. `pausing` is charged as running, `resuming` as paused. */
async function recordStatuses(model: Model): Promise<void> {
  const statuses = await readStatuses(model)
  for (const sandbox of model.sandboxes) {
    const status = { pausing: 'running', resuming: 'paused' }[statuses.get(sandbox.id)!] ?? statuses.get(sandbox.id)!
    if (sandbox.status === 'destroyed' || status === sandbox.status) continue
    assert.ok(status === 'running' || status === 'paused', status)
    setStatus(model, sandbox, status)
  }
}

async function assertLedger(model: Model): Promise<void> {
  const { rows } = await sql<{ balance: number; sum: number }>`select credit_micro as balance,
    (select sum(amount_micro) from credit_entries where user_id = users.id) as sum
    from users where id = ${model.owner.id}`.execute(deps.db)
  assert.deepEqual(rows[0], { balance: balanceOf(model), sum: balanceOf(model) })
}

const statusOf = async (id: string) =>
  (await deps.db.selectFrom('sandboxes').select('status').where('id', '=', id).executeTakeFirstOrThrow()).status

async function readStatuses(model: Model): Promise<Map<string, string>> {
  const rows = await deps.db
    .selectFrom('sandboxes')
    .select(['id', 'status'])
    .where('user_id', '=', model.owner.id)
    .execute()
  return new Map(rows.map(({ id, status }) => [id, status]))
}

async function countUncharged(model: Model): Promise<number> {
  const { rows } = await sql<{ n: number }>`select count(*) as n from usage_intervals
    where user_id = ${model.owner.id} and billable and charged_until < least(ended_at, now())`.execute(deps.db)
  return rows[0]!.n
}

async function noStatementRuns(): Promise<boolean> {
  const { rows } = await sql<{ n: number }>`select count(*) as n from pg_stat_activity
    where datname = current_database() and pid <> pg_backend_pid() and state <> 'idle'`.execute(deps.db)
  return rows[0]!.n === 0
}
