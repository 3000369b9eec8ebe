/**
 * Delivers webhook events. Every process runs one deliverer.
 *
 * Which process. An endpoint with deliveries due is taken by one process, which is its owner until nothing is due. When the
 * owner dies, its heartbeat ends (jobs/processes.ts) and another process takes the endpoint. What the dead one had sent but
 * not recorded is sent again: a delivery arrives at least once.
 *
 * When. The transaction of an event notifies all processes (migration 0008), so the first attempt follows at once. Retries,
 * and notifications that were missed, are found by polling every second.
 *
 * Order. Deliveries about the same subject, such as one sandbox, are attempted one after another in the order of their events.
 * One that fails does not hold up the next: it is retried later, after them.
 *
 * Fairness. An endpoint has at most WIDTH_MAX requests open, and begins with one: each success doubles the number. A
 * receiver that does not answer therefore occupies few slots, and once it has failed it no longer shares slots with those that
 * answer. Slots are given in the order of requests for them, so an endpoint with a long queue waits like the others.
 *
 * Results of all endpoints are stored by one statement at a time, with everything that has ended meanwhile.
 */
import { WEBHOOK_TIMEOUT_MS, webhookRetryDelayMs } from '@warren/protocol'
import { listen } from '../db/listen.ts'
import type { Deps } from '../deps.ts'
import { webhookSecretPlace } from '../secrets/places.ts'
import { mayUseLoopback } from '../users/may-use-loopback.ts'
import { createSender } from './send.ts'
import { createSlots, type Slots } from './slots.ts'
import {
  type AttemptResult,
  type DueDelivery,
  listDue,
  mayDeliver,
  releaseEndpoints,
  saveResults,
  type TakenEndpoint,
  takeEndpoints,
} from './store.ts'

export type Deliverer = { stop(): Promise<void> }

/** Requests that are open at the same time, to endpoints whose last attempt succeeded or is the first, and to the others. */
const HEALTHY_SLOTS = 128
const FAILING_SLOTS = 64
const WIDTH_MAX = 8
const FAILING_WIDTH_MAX = 2
/** Endpoints that are delivered to at the same time. Others wait for the next poll, or for another process. */
const ENDPOINTS_MAX = 500
const BATCH = 100
const POLL_MS = 1_000
/** Statements of the deliverer that run at the same time, so that requests to the API find free connections. */
const STATEMENTS_MAX = 4
/** Deliveries stop within this time after a suspension. */
const RECHECK_MS = 1_000
const SAVE_RETRY_MS = 1_000
/** When the process stops, attempts in progress may still end within this time. */
const STOP_GRACE_MS = 1_000

type Health = { width: number; failing: boolean }
/** `wake` is set if there is news while the endpoint is being delivered to. */
type Running = { done: Promise<void>; wake: boolean }

export function startDeliverer(deps: Deps, { timeoutMs = WEBHOOK_TIMEOUT_MS } = {}): Deliverer {
  const sender = createSender(deps.webhookTargets, timeoutMs)
  const slots = { healthy: createSlots(HEALTHY_SLOTS), failing: createSlots(FAILING_SLOTS) }
  const statements = createSlots(STATEMENTS_MAX)
  const healths = new Map<string, Health>()
  const running = new Map<string, Running>()
  const stopping = new AbortController()
  let isAborting = false
  const saver = createSaver(deps, stopping.signal)
  const notified = new Set<string>()
  let taking: Promise<void> | undefined
  let pollIsDue = true

  const limited = async <T>(work: () => Promise<T>): Promise<T> => {
    await statements.take()
    try {
      return await work()
    } finally {
      statements.give()
    }
  }

  /** Takes endpoints that were named by notifications, or all that are due. One at a time. */
  function takeSoon(): void {
    if (stopping.signal.aborted || taking) return
    taking = take()
      .catch((error) => deps.log.warn({ err: error }, 'failed to look for webhook deliveries, retrying'))
      .finally(() => {
        taking = undefined
        if (notified.size > 0 || pollIsDue) setImmediate(takeSoon)
      })
  }

  async function take(): Promise<void> {
    const isPoll = pollIsDue
    pollIsDue = false
    const only = [...notified]
    notified.clear()
    for (const id of only) if (running.has(id)) running.get(id)!.wake = true
    const limit = ENDPOINTS_MAX - running.size
    const candidates = only.filter((id) => !running.has(id))
    if (limit <= 0 || (!isPoll && candidates.length === 0)) return
    const except = [...running.keys()]
    const taken = await limited(() => takeEndpoints(deps, { ...(isPoll ? {} : { only: candidates }), except, limit }))
    for (const endpoint of taken) start(endpoint)
  }

  function start(endpoint: TakenEndpoint): void {
    if (running.has(endpoint.id)) return
    const entry: Running = { done: Promise.resolve(), wake: false }
    running.set(endpoint.id, entry)
    entry.done = deliverTo(endpoint)
      .catch((error) => deps.log.warn({ err: error, endpoint: endpoint.id }, 'webhook deliveries failed, retrying'))
      .then(() => limited(() => releaseEndpoints(deps, [endpoint.id])))
      .catch((error) => deps.log.warn({ err: error, endpoint: endpoint.id }, 'failed to release a webhook endpoint'))
      .finally(() => {
        running.delete(endpoint.id)
        if (!entry.wake) return
        notified.add(endpoint.id)
        takeSoon()
      })
  }

  async function deliverTo(endpoint: TakenEndpoint): Promise<void> {
    const secret = await deps.secrets.open(webhookSecretPlace(endpoint.id), endpoint.secret)
    const allowLoopback = mayUseLoopback(deps.config, endpoint.plan)
    const receiver = { url: endpoint.url, secret, allowLoopback }
    while (!stopping.signal.aborted) {
      const due = await limited(() => listDue(deps, endpoint.id, BATCH))
      if (due.length === 0 || !(await deliverBatch(endpoint.id, receiver, due))) return
    }
  }

  /** Returns false when the endpoint must no longer be delivered to. */
  async function deliverBatch(
    endpointId: string,
    receiver: { url: string; secret: string; allowLoopback: boolean },
    due: DueDelivery[],
  ): Promise<boolean> {
    const queue = [...due]
    const busySubjects = new Set<string>()
    const saved: Promise<void>[] = []
    const health = healthOf(endpointId)
    let open = 0
    let isActive = true
    let checkedAt = 0
    let failure: unknown
    const { promise, resolve } = Promise.withResolvers<void>()

    const attempt = async (delivery: DueDelivery): Promise<void> => {
      const pool = await takeSlot(health, slots)
      try {
        if (Date.now() - checkedAt > RECHECK_MS) {
          checkedAt = Date.now()
          isActive &&= await limited(() => mayDeliver(deps, endpointId))
        }
        if (!isActive || stopping.signal.aborted) return
        const message = { ...receiver, delivery: delivery.id, action: delivery.event_action, body: delivery.payload }
        const error = await sender.send(message, deps.now())
        // An attempt that was cut off by the stop of this process is repeated by the next one.
        if (error !== undefined && isAborting) return
        recordHealth(health, error === undefined)
        const result = resultOf(delivery, error, deps.now())
        countAttempt(deps, result)
        saved.push(
          saver.save(result).then(
            (suspended) => {
              if (suspended.includes(endpointId)) isActive = false
            },
            // Handled here, because other requests may still be open.
            (error) => {
              failure = error
              isActive = false
            },
          ),
        )
      } finally {
        pool.give()
      }
    }
    const pump = (): void => {
      while (isActive && !stopping.signal.aborted && open < health.width) {
        const index = queue.findIndex(({ subject }) => !busySubjects.has(subject))
        if (index < 0) break
        const delivery = queue.splice(index, 1)[0]!
        busySubjects.add(delivery.subject)
        open++
        attempt(delivery)
          .catch((error) => {
            failure = error
            isActive = false
          })
          .finally(() => {
            busySubjects.delete(delivery.subject)
            open--
            pump()
          })
      }
      if (open === 0) resolve()
    }
    pump()
    // Also after a failure: while requests are open, the endpoint must not be taken again.
    await promise
    await Promise.all(saved)
    if (failure !== undefined) throw failure
    return isActive
  }

  function healthOf(endpointId: string): Health {
    const known = healths.get(endpointId)
    if (known) return known
    // Forgetting is harmless: the endpoint begins with one request again.
    if (healths.size >= 10 * ENDPOINTS_MAX) healths.clear()
    const health = { width: 1, failing: false }
    healths.set(endpointId, health)
    return health
  }

  const listener = listen(
    deps.database.url,
    'webhook_deliveries',
    {
      onNotification(id) {
        notified.add(id)
        takeSoon()
      },
      onConnected: poll,
    },
    deps.log,
  )
  function poll(): void {
    pollIsDue = true
    takeSoon()
  }
  const timer = setInterval(poll, POLL_MS)

  return {
    async stop() {
      stopping.abort()
      listener.close()
      clearInterval(timer)
      const grace = setTimeout(() => {
        isAborting = true
        sender.abort()
      }, STOP_GRACE_MS)
      await taking
      await Promise.all([...running.values()].map(({ done }) => done))
      clearTimeout(grace)
      sender.close()
    },
  }
}

async function takeSlot(health: Health, slots: { healthy: Slots; failing: Slots }): Promise<Slots> {
  const pool = health.failing ? slots.failing : slots.healthy
  await pool.take()
  return pool
}

function recordHealth(health: Health, succeeded: boolean): void {
  health.failing = !succeeded
  health.width = succeeded ? Math.min(health.width * 2, WIDTH_MAX) : Math.min(health.width, FAILING_WIDTH_MAX)
}

function resultOf(delivery: DueDelivery, error: string | undefined, at: Date): AttemptResult {
  const attempts = delivery.attempts + 1
  const delayMs = error === undefined ? undefined : webhookRetryDelayMs(attempts)
  const nextAttemptAt = delayMs === undefined ? null : new Date(at.getTime() + delayMs)
  return { id: delivery.id, attempts, error: error ?? null, nextAttemptAt, at }
}

function countAttempt(deps: Deps, { error, nextAttemptAt }: AttemptResult): void {
  deps.metrics.webhookAttempts.inc({ outcome: error === null ? 'delivered' : nextAttemptAt ? 'retry' : 'failed' })
}

type Saver = { save(result: AttemptResult): Promise<string[]> }

/** Stores results in batches, one statement at a time. If the database is unreachable they wait. */
function createSaver(deps: Deps, stopping: AbortSignal): Saver {
  type Waiter = { result: AttemptResult; resolve: (suspended: string[]) => void; reject: (error: unknown) => void }
  let waiting: Waiter[] = []
  let isBusy = false

  async function flush(): Promise<void> {
    const batch = waiting
    waiting = []
    try {
      const suspended = await saveResults(
        deps,
        batch.map(({ result }) => result),
      )
      for (const { resolve } of batch) resolve(suspended)
    } catch (error) {
      if (stopping.aborted) for (const { reject } of batch) reject(error)
      else {
        deps.log.warn({ err: error }, 'failed to store results of webhook deliveries, retrying')
        waiting = [...batch, ...waiting]
        return void setTimeout(flush, SAVE_RETRY_MS)
      }
    }
    isBusy = waiting.length > 0
    if (isBusy) setImmediate(flush)
  }

  return {
    save: (result) =>
      new Promise((resolve, reject) => {
        waiting.push({ result, resolve, reject })
        if (isBusy) return
        isBusy = true
        setImmediate(flush)
      }),
  }
}
