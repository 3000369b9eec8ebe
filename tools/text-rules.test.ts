import assert from 'node:assert/strict'
import { test } from 'node:test'
import { findBrokenReferences, findDiscouragedWords, type Repository } from './text-rules.ts'

const repository: Repository = {
  files: ['docs/api.md', 'docs/decisions/0001-first.md', 'host-agent/src/vms/pause.ts', 'README.md'],
  read: (file) => (file === 'docs/api.md' ? '# API\n\n## Errors and codes\n' : '# Title\n'),
}
const wordsIn = (text: string) => findDiscouragedWords(text).map(({ line }) => line)
const brokenIn = (file: string, text: string) =>
  findBrokenReferences(file, text, repository).map(({ message }) => message)

test('a discouraged word is reported with its line, in any case', () => {
  assert.deepEqual(wordsIn('fine\n// Mend it\nNobody waits\n`nobody` is a user name'), [2, 3])
})

test('plain text has no findings', () => {
  assert.deepEqual(wordsIn('The caller is notified and the guest continues.'), [])
})

test('a section of a document outside the repository is reported', () => {
  assert.equal(brokenIn('a.ts', '// see spec 4.3').length, 1)
  assert.equal(brokenIn('a.ts', "const text = 'wire 19'").length, 1)
  assert.deepEqual(brokenIn('a.ts', '// RFC 9110 §15.5'), [])
})

test('a decision is named by its file, not by its number', () => {
  assert.equal(brokenIn('a.ts', '// decision 14 says why').length, 1)
  assert.deepEqual(brokenIn('a.ts', '// docs/decisions/0001-first.md says why'), [])
})

test('a file named in a comment must exist', () => {
  assert.deepEqual(brokenIn('a.ts', '// see pause.ts and vms/pause.ts'), [])
  assert.deepEqual(brokenIn('a.ts', '/** As in body.ts. */'), ['there is no file body.ts'])
  assert.deepEqual(brokenIn('a.ts', "import { x } from './body.ts'"), [])
  assert.deepEqual(brokenIn('a.ts', '// every *.test.ts and <feature>.ts'), [])
})

test('a file named in a code span of a page must exist', () => {
  assert.deepEqual(brokenIn('docs/x.md', 'see `vms/pause.ts`'), [])
  assert.deepEqual(brokenIn('docs/x.md', 'see `vms/judge.ts`'), ['there is no file vms/judge.ts'])
})

test('links and anchors must lead somewhere', () => {
  assert.deepEqual(brokenIn('docs/x.md', '[a](api.md#errors-and-codes) [b](../README.md) [c](https://example.com)'), [])
  assert.deepEqual(brokenIn('docs/x.md', '[a](gone.md)'), ['the link to gone.md leads nowhere'])
  assert.deepEqual(brokenIn('docs/x.md', '[a](api.md#limits)'), ['docs/api.md has no heading for #limits'])
  assert.deepEqual(brokenIn('a.ts', '// docs/api.md#limits'), ['no heading for docs/api.md#limits'])
})
