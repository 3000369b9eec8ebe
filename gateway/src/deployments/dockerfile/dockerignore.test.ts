import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { findIgnored } from './dockerignore.ts'

const FILES = [
  'Dockerfile',
  'README.md',
  'README-secret.md',
  'app.js',
  'guide/README.md',
  'guide/a/b.md',
  'node_modules/x/index.js',
  'somedir/temporary.txt',
  'somedir/subdir/temporary.txt',
  'tempa',
  'tempab',
  'build/keep.txt',
  'build/out.js',
]

/** The examples of Docker's documentation, and what follows from its rules. */
const CASES: [string, string[]][] = [
  ['', []],
  ['# comment\n\n', []],
  ['*/temp*', ['somedir/temporary.txt']],
  ['*/*/temp*', ['somedir/subdir/temporary.txt']],
  ['temp?', ['tempa']],
  ['node_modules', ['node_modules/x/index.js']],
  ['/node_modules/', ['node_modules/x/index.js']],
  ['**/temporary.txt', ['somedir/temporary.txt', 'somedir/subdir/temporary.txt']],
  ['*.md\n!README.md', ['README-secret.md']],
  ['*.md\n!README*.md\nREADME-secret.md', ['README-secret.md']],
  ['*.md\nREADME-secret.md\n!README*.md', []],
  ['build\n!build/keep.txt', ['build/out.js']],
  ['./guide/../app.js', ['app.js']],
  ['guide/**', ['guide/README.md', 'guide/a/b.md']],
  ['**/*.md', ['README.md', 'README-secret.md', 'guide/README.md', 'guide/a/b.md']],
  ['*\n!app.js', FILES.filter((file) => file !== 'app.js')],
  ['temp[a-b]', ['tempa']],
  ['app\\.js', ['app.js']],
]

for (const [text, expected] of CASES) {
  test(`.dockerignore ${JSON.stringify(text)}`, () => {
    assert.deepEqual(findIgnored(text, FILES).sort(), expected.toSorted())
  })
}

test('any text is a .dockerignore', () => {
  const line = fc.stringMatching(/^[!*?[\]\\/.a-c^-]{0,20}$/)
  fc.assert(
    fc.property(fc.array(line, { maxLength: 5 }), (lines) => void findIgnored(lines.join('\n'), ['a/b/c', 'a/b', 'c'])),
    { numRuns: 300 },
  )
})
