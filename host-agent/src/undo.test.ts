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

test('a step that is added during or after the rollback is undone too, and run waits for it', async () => {
  const order: string[] = []
  const log = { error: () => assert.fail('no step fails') } as never
  const undo = new Undo()
  undo.add('first', () => order.push('first'))
  undo.add('second', () => {
    order.push('second')
    undo.add('added meanwhile', () => order.push('added meanwhile'))
  })

  await undo.run(log)
  const during = [...order]
  undo.add('added afterwards', () => order.push('added afterwards'))
  await undo.run(log)

  assert.deepEqual(during, ['second', 'added meanwhile', 'first'])
  assert.deepEqual(order, ['second', 'added meanwhile', 'first', 'added afterwards'])
})
