/**
 * What templates accept: the table in dockerfiles.txt, and rows here that a text file cannot show well. The syntax alone is
 * compared with BuildKit in dockerfile/src/buildkit.test.ts.
 */
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import path from 'node:path'
import { test } from 'node:test'
import { Failure } from '@warren/kit/failure'
import { planTemplate } from './plan.ts'
import { describePlan, RULES } from './testing.ts'

const debian = (...lines: string[]) => ['FROM debian:13', ...lines].join('\n')

type Row = [title: string, dockerfile: string, expected: string[]]

const UNREADABLE: Row[] = [
  [
    'Continuation lines: blanks after the backslash',
    debian('RUN echo a \\ \t', '  b'),
    ['image debian:13', 'run ["/bin/sh","-c","echo a   b"]'],
  ],
  [
    'Continuation lines: Windows line ends',
    'FROM debian:13\r\nRUN echo a \\\r\n  b\r\nENV A=1\r\n',
    ['image debian:13', 'run ["/bin/sh","-c","echo a   b"]', 'env A=1'],
  ],
  [
    'ENV and ARG: a value that is too long',
    debian(`ENV A=${'x'.repeat(5000)}`),
    ['400 line 2, ENV: the environment of a sandbox cannot hold this: A must not be longer than 4096 bytes'],
  ],
  ['Refused: a NUL character', debian('RUN a\u0000b'), ['400 line 2: remove the NUL character']],
  [
    'Refused: too many steps',
    debian(...Array(128).fill('RUN make')),
    ['400 line 129, RUN: a template has at most 127 RUN and WORKDIR; join commands with &&'],
  ],
  [
    'Refused: an environment that is too large for a step',
    debian(`ARG A=${'x'.repeat(4000)}`, `ARG B=${'$A'.repeat(17)}`, 'RUN make'),
    ['400 line 4, RUN: ENV and ARG take 72066 bytes here, more than 65536; use shorter values'],
  ],
  [
    'Refused: too many variables',
    debian(...Array.from({ length: 300 }, (_, i) => `ARG A${i}=x`)),
    ['400 line 257, ARG: there are more than 256 variables; remove ENV or ARG instructions'],
  ],
  [
    'Refused: variables that double',
    debian('ENV A=0123456789', ...Array(9).fill('ENV A=$A$A$A$A$A$A$A$A')),
    ['400 line 7, ENV: the variables of this file expand to more than 262144 characters; use shorter values'],
  ],
  [
    'Refused: substitutions that are nested too deep',
    debian(`ENV A=${'${A:-'.repeat(101)}${'}'.repeat(101)}`),
    ['400 line 2, ENV: substitutions are nested more than 100 deep; use an ENV in between'],
  ],
  ['Refused: a file that is too large', debian('#'.repeat(64 * 1024)), ['400 must not exceed 65536 bytes']],
]

for (const [title, dockerfile, expected] of [...readTable(), ...UNREADABLE]) {
  test(title, async () => {
    assert.deepEqual(await describe(dockerfile), expected)
  })
}

test('the titles of the table differ', () => {
  const titles = readTable().map(([title]) => title)

  assert.ok(titles.length > 100)
  assert.equal(new Set(titles).size, titles.length)
})

test('an operator can shorten the list of bases, and an alias is allowed with its image', async () => {
  const rules = { ...RULES, allowedBases: ['debian:13'] }

  const plan = await planTemplate(rules, 'FROM nodeops/sandbox:debian')

  assert.deepEqual(plan.source, { kind: 'image', name: 'debian:13' })
  await assert.rejects(planTemplate(rules, 'FROM alpine:3.20'), /one of: debian:13$/)
})

test('an alias can be on the list without its image', async () => {
  const rules = { ...RULES, allowedBases: ['nodeops/sandbox:debian'] }

  assert.equal((await planTemplate(rules, 'FROM nodeops/sandbox:debian')).source.kind, 'image')
  await assert.rejects(planTemplate(rules, 'FROM debian:13'), /cannot be a base/)
})

async function describe(dockerfile: string): Promise<string[]> {
  try {
    return describePlan(await planTemplate(RULES, dockerfile))
  } catch (error) {
    assert.ok(error instanceof Failure, `not a failure: ${error}`)
    return [`${error.status} ${error.data.dockerfile}`]
  }
}

function readTable(): Row[] {
  const text = readFileSync(path.join(import.meta.dirname, 'dockerfiles.txt'), 'utf8')
  const [, ...blocks] = text.split(/^=== /m)
  return blocks.map((block) => {
    const [head = '', plan = ''] = block.split('\n---\n')
    const [title = '', ...dockerfile] = head.split('\n')
    return [title, dockerfile.join('\n'), plan.trimEnd().split('\n')]
  })
}
