import assert from 'node:assert/strict'
import { readdirSync, readFileSync, writeFileSync } from 'node:fs'
import path from 'node:path'
import { test } from 'node:test'
import { makeFolder } from '../images/testing.ts'
import { openRegistry } from './registry.ts'
import { EXAMPLES, PAUSED, RUNNING, SANDBOX } from './testing.ts'

test('what was written is listed, and gone after a delete', async (t) => {
  const registry = openRegistry(await makeFolder(t))

  await registry.write(RUNNING)
  assert.deepEqual(await registry.list(), { records: [RUNNING], unreadable: [] })

  await registry.delete(SANDBOX)
  assert.deepEqual(await registry.list(), { records: [], unreadable: [] })
})

test('the last write that was issued is the last one on disk', async (t) => {
  const registry = openRegistry(await makeFolder(t))

  await Promise.all([1, 2, 3, 4].map((fence) => registry.write({ ...PAUSED, fence })))

  assert.equal((await registry.list()).records[0]?.fence, 4)
})

test('a sandbox that is still being created is not written', async (t) => {
  const registry = openRegistry(await makeFolder(t))

  assert.throws(() => registry.write(EXAMPLES.creating), /there is nothing to write yet/)
})

test('a record that cannot be read is reported, stays, and can be set aside', async (t) => {
  const folder = await makeFolder(t)
  const registry = openRegistry(folder)
  writeFileSync(path.join(folder, `${SANDBOX}.json`), '{"id":')

  const { records, unreadable } = await registry.list()
  await registry.removeStrays()

  assert.deepEqual(records, [])
  assert.deepEqual([unreadable.length, unreadable[0]?.id], [1, SANDBOX])
  assert.deepEqual(readdirSync(folder), [`${SANDBOX}.json`])

  const aside = await registry.setAside(SANDBOX)
  await registry.removeStrays()

  // A crash here must not leave the sandbox without a record: its generations would be deleted.
  assert.equal((await registry.list()).unreadable.length, 1)

  await registry.write(PAUSED)

  assert.equal(readFileSync(aside, 'utf8'), '{"id":')
  assert.deepEqual(await registry.list(), { records: [PAUSED], unreadable: [] })

  await registry.delete(SANDBOX)
  assert.deepEqual(readdirSync(folder), [])
})

test('temporary files of interrupted writes are removed', async (t) => {
  const folder = await makeFolder(t)
  const registry = openRegistry(folder)
  await registry.write(PAUSED)
  writeFileSync(path.join(folder, `.${SANDBOX}.json.0123456789ab`), 'half')

  await registry.removeStrays()

  assert.deepEqual(readdirSync(folder), [`${SANDBOX}.json`])
})
