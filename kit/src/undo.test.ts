import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Undo } from './undo.ts'

test('steps are undone once, in reverse order, and one that fails does not stop the others', async () => {
  const order: string[] = []
  const failed: string[] = []
  const log = { error: (about: { step: string }) => failed.push(about.step) } as never
  const undo = new Undo()
  undo.add('first', () => order.push('first'))
  undo.add('broken', () => {
    throw new Error('cannot be undone')
  })
  undo.add('last', async () => order.push('last'))

  await undo.run(log)
  await undo.run(log)

  assert.deepEqual([order, failed], [['last', 'first'], ['broken']])
})
