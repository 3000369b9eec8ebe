import assert from 'node:assert/strict'
import { test } from 'node:test'
import { type Check, runChecks } from './check.ts'

const check = (name: string, run: Check['run'], needed: Check['needed'] = 'required'): Check => ({ name, needed, run })

test('outcomes have the order of the checks, whichever finishes first', async () => {
  const second = Promise.withResolvers<void>()
  const checks = [
    check('slow', async () => {
      await second.promise
      return { ok: true, detail: 'a' }
    }),
    check('quick', async () => {
      second.resolve()
      return { ok: false, detail: 'b', fix: 'c' }
    }),
  ]

  const outcomes = await runChecks(checks)

  assert.deepEqual(outcomes, [
    { name: 'slow', needed: 'required', ok: true, detail: 'a' },
    { name: 'quick', needed: 'required', ok: false, detail: 'b', fix: 'c' },
  ])
})

test('a check that throws fails with the text of the error', async () => {
  const broken = check('broken', () => Promise.reject(new Error('no such thing')), 'recommended')
  const brokenAtOnce = check('broken at once', () => {
    throw new Error('nor this')
  })

  const [first, second] = await runChecks([broken, brokenAtOnce])

  assert.equal(first?.ok, false)
  assert.equal(first?.needed, 'recommended')
  assert.match(first?.detail ?? '', /no such thing/)
  assert.equal(second?.ok, false)
  assert.match(second?.detail ?? '', /nor this/)
})

test('a check that hangs times out, and its signal is aborted', async () => {
  let aborted = false
  const hanging = check('hanging', (signal) => {
    signal.addEventListener('abort', () => {
      aborted = true
    })
    return new Promise(() => {})
  })

  const [outcome] = await runChecks([hanging], 20)

  assert.equal(outcome?.ok, false)
  assert.equal(outcome?.detail, 'timed out after 20 ms')
  assert.equal(aborted, true)
})
