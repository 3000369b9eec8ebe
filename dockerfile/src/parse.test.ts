import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { DockerfileError } from './errors.ts'
import type { InstructionName, InstructionOf } from './instruction.ts'
import { parseDockerfile } from './parse.ts'

/** The first instruction with this name. */
function parseOne<Name extends InstructionName>(name: Name, ...lines: string[]): InstructionOf<Name> {
  const { instructions } = parseDockerfile(['FROM scratch', ...lines].join('\n'))
  return instructions.find((one) => one.name === name) as InstructionOf<Name>
}

const pieces = fc.array(
  fc.string({ unit: fc.constantFrom(...'ab "\'$&|;=-'), minLength: 1 }).map((text) => `x${text}y`),
  {
    minLength: 1,
  },
)
const gaps = fc.constantFrom('', '# a comment\n', '   # an indented comment \\\n', '\n', ' \t\n', '\n# both\n\n')
const escapeChars = fc.constantFrom('\\', '`')

test('a command may be cut into lines anywhere, with comments and empty lines between them', () => {
  fc.assert(
    fc.property(pieces, gaps, fc.constantFrom('', ' ', '\t '), escapeChars, (parts, gap, blanks, escapeChar) => {
      const text = `# escape=${escapeChar}\nFROM scratch\nRUN ${parts.join(`${escapeChar}${blanks}\n${gap}`)}\nUSER me`

      const { instructions } = parseDockerfile(text)

      const [, run, user] = instructions
      assert.deepEqual(run, { ...run, name: 'RUN', command: { form: 'shell', script: parts.join('') } })
      assert.equal(user?.name, 'USER')
    }),
  )
})

test('an escape character that is escaped, or that is not the last one, does not continue a line', () => {
  fc.assert(
    fc.property(escapeChars, fc.constantFrom('', ' '), (escapeChar, blanks) => {
      const other = escapeChar === '\\' ? '`' : '\\'
      for (const end of [escapeChar + escapeChar, escapeChar + escapeChar + escapeChar, `${escapeChar}x`, other]) {
        const text = `# escape=${escapeChar}\nFROM scratch\nRUN a ${end}${blanks}\nRUN b`
        assert.equal(parseDockerfile(text).instructions.length, 3, text)
      }
    }),
  )
})

test('line ends of Windows change nothing but the text of heredocs', () => {
  const lines = ['FROM scratch', 'ENV A=1 \\', '  B=2', '# comment', 'RUN echo a \\', '', '  b']

  assert.deepEqual(parseDockerfile(lines.join('\r\n')), parseDockerfile(lines.join('\n')))
})

const documentLines = fc.array(fc.string({ unit: fc.constantFrom(...'ab #\\`"\'$<\t\r'), maxLength: 12 }))

test('the text of a heredoc is kept to the byte', () => {
  fc.assert(
    fc.property(documentLines, fc.constantFrom('EOF', '"EOF"', "'EOF'", '-EOF', ' EOF'), (lines, delimiter) => {
      const content = lines.map((line) => `${line}\n`).join('')

      const run = parseOne('RUN', `RUN cat <<${delimiter} > /x`, `${content}EOF`, 'USER me')

      assert.equal(run.heredocs[0]?.content, content)
      assert.equal(run.heredocs[0]?.expands, !/["']/.test(delimiter))
      assert.equal(run.heredocs[0]?.stripsTabs, delimiter.startsWith('-'))
    }),
  )
})

test('heredocs follow each other in the order of their words', () => {
  const run = parseOne('RUN', 'RUN a <<ONE && b <<-TWO', '1', 'TWO', 'ONE', '2', '\tTWO', 'USER me')

  assert.deepEqual(run.heredocs, [
    { name: 'ONE', content: '1\nTWO\n', stripsTabs: false, expands: true },
    { name: 'TWO', content: '2\n', stripsTabs: true, expands: true },
  ])
  assert.deepEqual([run.line, run.endLine], [2, 7])
})

test('positions are those of the file, whatever precedes an instruction', () => {
  const { instructions } = parseDockerfile(
    '\n# comment\nFROM scratch\n\nRUN a \\\n # comment\n b\nRUN <<E\nc\nE\nUSER me\n',
  )

  assert.deepEqual(
    instructions.map(({ name, line, endLine }) => [name, line, endLine]),
    [
      ['FROM', 3, 3],
      ['RUN', 5, 7],
      ['RUN', 8, 10],
      ['USER', 11, 11],
    ],
  )
})

test('a byte order mark is no part of the first instruction', () => {
  assert.equal(parseDockerfile('\uFEFFFROM scratch').instructions[0]?.name, 'FROM')
})

test('COPY has sources, a destination and flags', () => {
  const copy = parseOne('COPY', 'COPY --from=build --chown=me:us --chmod=755 --link --parents --exclude=*.md a b /c/')

  assert.deepEqual(copy.sources, ['a', 'b'])
  assert.equal(copy.destination, '/c/')
  assert.deepEqual([copy.from, copy.chown, copy.chmod, copy.excludes], ['build', 'me:us', '755', ['*.md']])
  assert.deepEqual([copy.isLinked, copy.keepsParents], [true, true])
})

test('COPY can contain files', () => {
  const copy = parseOne('COPY', 'COPY x <<A <<"B" /d/', 'one', 'A', 'two', 'B')

  assert.deepEqual(copy.sources, [
    'x',
    { name: 'A', content: 'one\n', stripsTabs: false, expands: true },
    { name: 'B', content: 'two\n', stripsTabs: false, expands: false },
  ])
})

test('ADD has other flags', () => {
  const add = parseOne('ADD', 'ADD --checksum=sha256:1 --keep-git-dir=true --unpack=false ["a b", "/c"]')

  assert.deepEqual([add.sources, add.destination], [['a b'], '/c'])
  assert.deepEqual([add.checksum, add.keepsGitDir, add.unpacks], ['sha256:1', true, false])
})

test('HEALTHCHECK has times in milliseconds', () => {
  const { check } = parseOne('HEALTHCHECK', 'HEALTHCHECK --interval=1m30s --timeout=1.5s --retries=3 CMD ["a", "b"]')

  assert.deepEqual(check, {
    command: { form: 'exec', argv: ['a', 'b'] },
    intervalMs: 90_000,
    timeoutMs: 1500,
    startPeriodMs: undefined,
    startIntervalMs: undefined,
    retries: 3,
  })
})

test('ONBUILD keeps its instruction as text, heredocs included', () => {
  assert.equal(parseOne('ONBUILD', 'ONBUILD RUN <<E', 'a', 'E').trigger, 'RUN <<E\na\nE')
})

test('an error has the line and the instruction', () => {
  const parse = () => parseDockerfile('FROM scratch\n\nRUN --foo \\\n x')

  assert.throws(parse, (error) => {
    assert.ok(error instanceof DockerfileError)
    assert.deepEqual([error.line, error.instruction], [3, 'RUN'])
    assert.match(error.message, /^line 3, RUN: unknown flag "--foo"; known are --mount/)
    return true
  })
})
