import assert from 'node:assert/strict'
import { test } from 'node:test'
import { describeWorkingTree, findCommit } from './checkout.ts'

test('a commit is found by any name that git knows, an unknown one is not found', async () => {
  const head = await findCommit('HEAD')

  assert.match(head ?? '', /^[0-9a-f]{40}$/)
  assert.equal(await findCommit(head!.slice(0, 12)), head)
  assert.equal(await findCommit('no-such-commit'), undefined)
  assert.equal(await findCommit('HEAD:package.json'), undefined)
  assert.equal(await findCommit('--all'), undefined)
  assert.equal(await findCommit(''), undefined)
})

test('the working tree is described by its commit', async () => {
  assert.match(await describeWorkingTree(), /^[0-9a-f]{7,40}( with uncommitted changes)?$/)
})
