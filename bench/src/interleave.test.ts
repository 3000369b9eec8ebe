import assert from 'node:assert/strict'
import { test } from 'node:test'
import { interleave } from './interleave.ts'
import type { Run } from './row.ts'

const runFor = (seconds: number, signal = new AbortController().signal): Run => ({
  seconds,
  quick: false,
  signal,
  report() {},
  defer() {},
  open: (fixture) => fixture(runFor(seconds, signal)),
})

test('a turn may return several samples, rounds may be counted, and every turn waits for settle', async () => {
  const events: string[] = []
  const turn = (name: string, samples: number | number[]) => async () => {
    events.push(name)
    return samples
  }

  const turns = await interleave(
    runFor(0.001),
    { ours: turn('ours', [1, 2]), baseline: turn('baseline', 3) },
    { rounds: 2, settle: async () => void events.push('settled') },
  )

  assert.deepEqual(turns, { ours: [1, 2, 1, 2], baseline: [3, 3] })
  assert.deepEqual(events, ['settled', 'ours', 'settled', 'baseline', 'settled', 'baseline', 'settled', 'ours'])
})

test('candidates take turns, and the first of a round alternates', async () => {
  const order: string[] = []
  const stopping = new AbortController()
  const turn = (name: string) => async () => {
    order.push(name)
    if (order.length === 6) stopping.abort(new Error('enough'))
    return order.length
  }

  const turns = interleave(runFor(3600, stopping.signal), { ours: turn('ours'), baseline: turn('baseline') })

  await assert.rejects(turns, /enough/)
  assert.deepEqual(order, ['ours', 'baseline', 'baseline', 'ours', 'ours', 'baseline'])
})

test('each candidate gets at least one turn, however short the time', async () => {
  const turns = await interleave(runFor(0), { ours: async () => 1, baseline: async () => 2 })

  assert.deepEqual(turns, { ours: [1], baseline: [2] })
})
