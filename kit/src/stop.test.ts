import assert from 'node:assert/strict'
import { test } from 'node:test'
import { StopStack } from './stop.ts'
import { passTime } from './testing/pass-time.ts'

function recorder() {
  const errors: string[] = []
  return { errors, log: { debug() {}, error: (about: { step: string }) => errors.push(about.step) } as never }
}

test('the part that was started last is stopped first', async () => {
  const order: string[] = []
  const stack = new StopStack()
  for (const name of ['database', 'app', 'listener']) stack.add(name, () => order.push(name))

  await stack.run(recorder().log, 1_000)

  assert.deepEqual(order, ['listener', 'app', 'database'])
})

test('a step that fails or hangs is logged and the others still run', async () => {
  const order: string[] = []
  const { log, errors } = recorder()
  const stack = new StopStack()
  stack.add('database', () => order.push('database'))
  stack.add('hangs', () => new Promise(() => {}))
  stack.add('fails', () => {
    throw new Error('no')
  })

  await stack.run(log, 50)

  assert.deepEqual([errors, order], [['fails', 'hangs'], ['database']])
})

test('a step that hangs leaves the steps after it the time that is reserved for them', async () => {
  const { log, errors } = recorder()
  const stack = new StopStack()
  let stopped = false
  stack.add(
    'network',
    async () => {
      await passTime(60, 'a stop that needs time')
      stopped = true
    },
    200,
  )
  stack.add('hangs', () => new Promise(() => {}), 10)

  const failed = await stack.run(log, 250)

  assert.deepEqual([failed, errors, stopped], [['hangs'], ['hangs'], true])
})

test('a step that is added while others run is run too', async () => {
  const order: string[] = []
  const stack = new StopStack()
  stack.add('folder', () => order.push('folder'))
  stack.add('start', async () => {
    await passTime(1, 'a start that needs time')
    stack.add('network', () => order.push('network'))
  })

  await stack.run(recorder().log, 1_000)

  assert.deepEqual(order, ['network', 'folder'])
})

test('stopping twice runs each step once', async () => {
  let stops = 0
  const stack = new StopStack()
  stack.add('once', () => {
    stops++
  })

  await Promise.all([stack.run(recorder().log, 1_000), stack.run(recorder().log, 1_000)])

  assert.equal(stops, 1)
})
