/** Dockerfiles come from strangers: whatever they contain, reading one ends soon, in a result or in a DockerfileError. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { keysOfSteps } from './cache-key.ts'
import { DockerfileError } from './errors.ts'
import { evaluateStage } from './evaluate.ts'
import { EMPTY_IMAGE } from './image.ts'
import { parseDockerfile } from './parse.ts'
import { openStages } from './stages.ts'

/** What the API accepts. */
const SIZE_MAX = 64 * 1024
/** Processor time, so that other programs do not count. Most files of this size take a hundredth of it. */
const LIMIT_MS = 2000

/** Everything that happens to a Dockerfile. Returns its error, if it has one. */
function readFully(text: string): string | undefined {
  try {
    const { scope, stages } = openStages(parseDockerfile(text), 'amd64')
    for (const stage of stages) {
      const { steps } = evaluateStage(scope, EMPTY_IMAGE, stage)
      keysOfSteps(
        'base',
        steps.filter((step) => step.kind === 'run' || step.kind === 'workdir'),
      )
    }
    return undefined
  } catch (error) {
    if (error instanceof DockerfileError) return error.message
    throw error
  }
}

const NAMES = ['FROM x', 'RUN', 'ENV', 'ARG', 'COPY', 'ADD', 'WORKDIR', 'USER', 'SHELL', 'EXPOSE', 'LABEL', 'VOLUME']
const MORE_NAMES = [
  'CMD',
  'ENTRYPOINT',
  'HEALTHCHECK',
  'STOPSIGNAL',
  'ONBUILD',
  'MAINTAINER',
  '# escape=`\n',
  '#',
  'FROM $a',
]
const PIECES = [
  'a',
  'a=',
  '$a',
  '${a',
  '${a:-',
  '${a#*',
  '${a//',
  '}',
  '"',
  "'",
  '\\',
  '`',
  '<<E',
  '<<-E',
  'E',
  '["',
  '"]',
  '--x=',
]
const SPACES = [
  ' ',
  '\n',
  '\r\n',
  '\t',
  '\\\n',
  '`\n',
  '\u2028',
  '\u0085',
  '\0',
  '\ud800',
  '😀',
  '__proto__',
  '80',
  '/',
]
const files = fc.array(fc.constantFrom(...NAMES, ...MORE_NAMES, ...PIECES, ...SPACES), { maxLength: 60 })

test('random pieces are read, or refused with the line', () => {
  fc.assert(
    fc.property(files, (pieces) => {
      const error = readFully(`FROM x\n${pieces.join('')}`)
      assert.match(error ?? 'line 1: ok', /^line \d+(, ([A-Z]+|".+"))?: .+$/)
    }),
    { numRuns: 2000 },
  )
})

test('random characters are read, or refused', () => {
  fc.assert(
    fc.property(fc.string({ unit: 'binary', maxLength: 60 }), (text) => void readFully(text)),
    { numRuns: 300 },
  )
})

test('an error is short, even if the file is not', () => {
  for (const text of [
    `FROM x\n${'Z'.repeat(SIZE_MAX)}`,
    `FROM x\nENV ${'Z'.repeat(SIZE_MAX)}`,
    `FROM x\nRUN <<${'Z'.repeat(SIZE_MAX)}`,
  ]) {
    assert.ok((readFully(text) ?? '').length < 300)
  }
})

const fill = (before: string, unit: string, after = '') =>
  `FROM x\n${before}${unit.repeat((SIZE_MAX - before.length - after.length - 7) / unit.length)}${after}`

/** Each would take minutes, or gigabytes, if some step looked at everything before or after it. */
const LARGE: Record<string, string> = {
  'short instructions': fill('', 'RUN x\n'),
  comments: fill('', '#\n'),
  'empty lines': fill('', '\n'),
  'continuation lines': fill('RUN x', '\\\nx'),
  'comments between continuation lines': fill('RUN x\\\n', '#\n', 'x'),
  'a gap in a line': fill('RUN x', ' ', 'x'),
  'gaps before and after': fill('ENV a=b', ' ', '\\\n'),
  'carriage returns': fill('RUN x', '\r', 'x'),
  backslashes: fill('RUN x', '\\', 'x'),
  'backslashes and blanks': fill('RUN x', '\\ ', 'x'),
  'escape characters in a word': fill('ENV a=', '\\x'),
  'a long heredoc': fill('RUN <<E\n', 'x\n', 'E'),
  'tabs in a heredoc': fill('RUN <<-E\n', '\t', '\nE'),
  'many heredocs': fill('RUN x ', '<<E '),
  'many heredocs with an end': fill('RUN x <<E <<E <<E <<E\n', 'E\n'),
  'heredocs one after the other': fill('', 'RUN <<E\nE\n'),
  'less-than signs': fill('RUN ', '<'),
  'open quotes': fill('RUN x <<E ', '"'),
  'variables in one ENV': fill('ENV', ' a=b'),
  'variables with different names': Array.from({ length: 5000 }, (_, i) => `ENV a${i}=b`).join('\n'),
  'ENV and RUN in turns': fill('', 'ENV a=b\nRUN x\n'),
  'one variable many times': fill(`ENV a=${'x'.repeat(4000)}\nENV b=`, '$a'),
  'doubled variables': fill('ENV a=xxxxxxxx\n', 'ENV a=$a$a\n'),
  'nested substitutions': fill('ENV a=', '${a:-'),
  'a pattern that almost matches': fill(`ENV a=${'a'.repeat(8000)}\n`, `ENV b=\${a##*${'a'.repeat(100)}b}\n`),
  'a pattern of stars': fill(`ENV a=${'a'.repeat(8000)}\n`, `ENV b=\${a%%${'*a'.repeat(60)}b}\n`),
  'a replacement that grows': fill(`ENV a=${'a'.repeat(8000)}\n`, `ENV b=\${a//a/${'b'.repeat(4000)}}\n`),
  'opening brackets': fill('RUN ', '['),
  'an array of many words': fill('RUN [""', ',"a"', ']'),
  flags: fill('RUN ', '--mount=a '),
  'quotes in flags': fill('RUN --mount=', '"a'),
  labels: fill('', 'LABEL a=b\n'),
  volumes: fill('', 'VOLUME a\n'),
  ports: fill('EXPOSE', ' 1-65535'),
  'a long time': fill('HEALTHCHECK --interval=', '1', ' CMD x'),
  folders: fill('', 'WORKDIR a\n'),
  triggers: fill('', 'ONBUILD RUN x\n'),
  stages: fill('', 'FROM x AS a\n'),
}

for (const [title, text] of Object.entries(LARGE)) {
  test(`64 KiB are read in linear time: ${title}`, () => {
    const before = process.cpuUsage()

    readFully(text)

    const { user, system } = process.cpuUsage(before)
    const ms = (user + system) / 1000
    assert.ok(ms < LIMIT_MS, `took ${ms} ms of processor time`)
  })
}
