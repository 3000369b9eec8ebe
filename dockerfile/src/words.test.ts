import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { Problem } from './errors.ts'
import { type EscapeCharacter, expandWord, splitText } from './words.ts'

const VARIABLES: Record<string, string> = { a: 'value', empty: '', file: '/srv/app.tar.gz', words: 'two words' }
const rules = (escapeChar: EscapeCharacter = '\\') => ({ escapeChar, find: (name: string) => VARIABLES[name] })
const expand = (text: string) => expandWord(text, rules())

const escapeChars = fc.constantFrom<EscapeCharacter[]>('\\', '`')
/** Texts with many characters that mean something. */
const texts = fc.string({ unit: fc.constantFrom(...'ab $"\'\\`{}:-+#%/<\t', 'é', '😀') })

test('any text survives in single quotes', () => {
  fc.assert(
    fc.property(texts, escapeChars, (text, escapeChar) => {
      const plain = text.replaceAll("'", '')
      assert.equal(expandWord(`'${plain}'`, rules(escapeChar)), plain)
    }),
  )
})

test('any text survives in double quotes in which ", $ and the escape character are escaped', () => {
  fc.assert(
    fc.property(texts, escapeChars, (text, escapeChar) => {
      const escaped = [...text].map((char) => (['"', '$', escapeChar].includes(char) ? escapeChar + char : char))
      assert.equal(expandWord(`"${escaped.join('')}"`, rules(escapeChar)), text)
    }),
  )
})

test('any text survives without quotes if every character is escaped', () => {
  fc.assert(
    fc.property(texts, escapeChars, (text, escapeChar) => {
      const escaped = [...text].map((char) => escapeChar + char).join('')
      assert.equal(expandWord(escaped, rules(escapeChar)), text)
      assert.deepEqual(splitText(escaped, rules(escapeChar)).words, text === '' ? [] : [text])
    }),
  )
})

test('in double quotes the escape character is literal before an ordinary character, without quotes it vanishes', () => {
  fc.assert(
    fc.property(fc.constantFrom(...'abn é'), escapeChars, (char, escapeChar) => {
      assert.equal(expandWord(`"${escapeChar}${char}"`, rules(escapeChar)), escapeChar + char)
      assert.equal(expandWord(`${escapeChar}${char}`, rules(escapeChar)), char)
    }),
  )
})

test('an escape character at the end vanishes', () => {
  assert.equal(expand('a\\'), 'a')
})

/** Whether the word replaces the value, by operator and by the state of the variable. */
const SUBSTITUTIONS = [
  { operator: ':-', set: 'value', empty: 'word', unset: 'word' },
  { operator: '-', set: 'value', empty: '', unset: 'word' },
  { operator: ':+', set: 'word', empty: '', unset: '' },
  { operator: '+', set: 'word', empty: 'word', unset: '' },
  { operator: ':?', set: 'value', empty: 'error', unset: 'error' },
  { operator: '?', set: 'value', empty: '', unset: 'error' },
]

for (const { operator, ...expected } of SUBSTITUTIONS) {
  test(`the substitution ${operator} of a set, an empty and an unset variable`, () => {
    const read = (name: string) => {
      try {
        return expand(`\${${name}${operator}word}`)
      } catch (error) {
        assert.ok(error instanceof Problem)
        return 'error'
      }
    }

    assert.deepEqual({ set: read('a'), empty: read('empty'), unset: read('unset') }, expected)
  })
}

test('the word of a substitution may contain variables, quotes and escapes', () => {
  assert.equal(expand(`\${unset:-\${empty:-"\${a} }" '$a' \\}}}`), 'value } $a }')
})

test('patterns remove a prefix or suffix, and replace', () => {
  const cases = {
    '${file#*/}': 'srv/app.tar.gz',
    '${file##*/}': 'app.tar.gz',
    '${file%.*}': '/srv/app.tar',
    '${file%%.*}': '/srv/app',
    '${file/a/x}': '/srv/xpp.tar.gz',
    '${file//a/x}': '/srv/xpp.txr.gz',
    '${file//\\//:}': ':srv:app.tar.gz',
    '${file#/srv/???}': '.tar.gz',
    '${unset#x}': '',
  }

  const results = Object.keys(cases).map((text) => [text, expand(text)])

  assert.deepEqual(Object.fromEntries(results), cases)
})

test('white space in a value separates words, unless it is quoted', () => {
  assert.deepEqual(splitText('x$words "$words" \'a b\'c\\ d', rules()).words, ['xtwo', 'words', 'two words', 'a bc d'])
  assert.deepEqual(splitText('$empty ""  ', rules()).words, [])
})

test('names are letters, digits and underscores, or one special character', () => {
  assert.equal(expand('$a-b $a.b $a_ $1a $? $$ $'), 'value-b value.b  a   $')
})

test('what cannot be read is a Problem that says what to do', () => {
  const problems = {
    '"a': 'a double quote is not closed; add the other " or escape it',
    "'a": "a single quote is not closed; add the other ' or escape it",
    '${a': '} is missing after ${a',
    '${a:-b': '} is missing; close the substitution that begins with ${',
    '${}': 'a variable in braces needs a name',
    '${a^^}': '${a^… is not a known substitution; use one of - + ? # % / or a RUN with a shell',
    '${a:=b}': '${a:=… is not a known substitution; use one of - + ? # % / or a RUN with a shell',
    '${unset:?say why}': 'unset: say why',
    '${unset?}': 'unset: is not set; set it with ARG or ENV',
    '${a#\\x}': 'pattern "\\\\x" has a backslash before "x"; it can only precede *?\\/}',
  }

  for (const [text, message] of Object.entries(problems)) {
    assert.throws(() => expand(text), { constructor: Problem, message }, text)
  }
})

test('every value that is used is counted', () => {
  let spent = 0
  const spend = (characters: number) => {
    spent += characters
  }

  expandWord(`$a \${a} \${unset:-$a} \${file//a/xy}`, { ...rules(), spend })

  assert.equal(spent, 3 * 'value'.length + VARIABLES.file!.length + 2 * 'xy'.length)
})
