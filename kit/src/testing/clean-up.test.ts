import assert from 'node:assert/strict'
import { test } from 'node:test'
import { addCleanUp, type Scope } from './clean-up.ts'

function createScope(): Scope & { end(): Promise<void> } {
  const hooks: (() => Promise<void>)[] = []
  return {
    after: (hook) => void hooks.push(hook),
    async end() {
      for (const hook of hooks) await hook()
    },
  }
}

test('every clean-up runs, in order, although one fails, and its error is reported', async () => {
  const scope = createScope()
  const ran: string[] = []
  const fail = new Error('the instance does not respond')
  addCleanUp(scope, () => {
    ran.push('sandboxes')
    throw fail
  })
  addCleanUp(scope, async () => void ran.push('processes'))

  await assert.rejects(scope.end(), fail)

  assert.deepEqual(ran, ['sandboxes', 'processes'])
})

test('all errors are reported', async () => {
  const scope = createScope()
  for (const name of ['one', 'two']) addCleanUp(scope, () => Promise.reject(new Error(name)))

  await assert.rejects(scope.end(), { message: '2 clean-ups failed: Error: one; Error: two' })
})

test('clean-ups of one test do not run with another', async () => {
  const [first, second] = [createScope(), createScope()]
  const ran: string[] = []
  addCleanUp(first, () => void ran.push('first'))
  addCleanUp(second, () => void ran.push('second'))

  await first.end()

  assert.deepEqual(ran, ['first'])
})
