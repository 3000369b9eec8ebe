import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Yielded } from './bases/builds.ts'
import { prepareWhenIdle } from './prepare-when-idle.ts'

/** Prepares `all`, with an obstacle or a failure for some of them, and records what happens. */
function start(all: string[], more: Partial<Parameters<typeof prepareWhenIdle<string>>[1]> = {}) {
  const events: string[] = []
  const stopping = new AbortController()
  const done = prepareWhenIdle(all, {
    findObstacle: async () => undefined,
    prepare: async (one) => void events.push(one),
    onFailure: (one, error) => events.push(`${one} failed: ${(error as Error).message}`),
    onWait: (why) => events.push(`waits: ${why}`),
    signal: stopping.signal,
    pollMs: 1,
    ...more,
  })
  return { events, stopping, done }
}

test('everything is prepared, one after the other', async () => {
  let underWay = 0
  const { done } = start(['small', 'large'], {
    async prepare() {
      assert.equal(++underWay, 1)
      await new Promise(setImmediate)
      underWay--
    },
  })

  await done
})

test('it waits while the machine is busy, and says so once', async () => {
  let polls = 0
  const { events, done } = start(['small'], { findObstacle: async () => (++polls < 4 ? 'busy' : undefined) })

  await done

  assert.deepEqual(events, ['waits: busy', 'small'])
})

test('what fits comes before what does not', async () => {
  let room = 1
  const sizes: Record<string, number> = { large: 2, small: 1 }
  const { events, done } = start(['large', 'small'], {
    findObstacle: async (one) => (sizes[one]! > room ? 'too little memory' : undefined),
    onWait() {
      room = 2
    },
  })

  await done

  assert.deepEqual(events, ['small', 'large'])
})

test('what yielded to a request is tried again, what failed is not', async () => {
  const attempts: string[] = []
  const { events, done } = start(['broken', 'yields'], {
    async prepare(one) {
      attempts.push(one)
      if (one === 'broken') throw new Error('it panicked')
      if (attempts.length < 4) throw new Yielded('another base is needed first')
    },
  })

  await done

  assert.deepEqual(attempts, ['broken', 'yields', 'yields', 'yields'])
  assert.deepEqual(events, ['broken failed: it panicked'])
})

test('a stop ends it at once, and is not a failure', async () => {
  const waiting = start(['small'], { findObstacle: async () => 'busy', pollMs: 1_000_000 })
  waiting.stopping.abort()
  await waiting.done

  const working = start(['small', 'large'], {
    prepare: () =>
      new Promise((_, reject) => working.stopping.signal.addEventListener('abort', () => reject(new Error('stopped')))),
  })
  await new Promise(setImmediate)
  working.stopping.abort()
  await working.done

  assert.deepEqual([waiting.events, working.events], [['waits: busy'], []])
})
