import assert from 'node:assert/strict'
import { test } from 'node:test'
import { LINE_MAX, LineSplitter } from './line-splitter.ts'
import { createMask } from './mask.ts'

const split = (...chunks: string[]): string[] => {
  const splitter = new LineSplitter(createMask({ runEnvs: { TOKEN: 'very-secret' }, buildVars: null }))
  return [...chunks.flatMap((chunk) => splitter.push(Buffer.from(chunk))), ...splitter.end()]
}

test('chunks become lines, and of a progress bar its last state remains', () => {
  assert.deepEqual(split('a\nb', 'c\r\n', '10 %\r50 %\r100 %\n'), ['a', 'bc', '100 %'])
})

test('a secret is hidden when it is split between chunks, or by colours', () => {
  assert.deepEqual(split('it is very-', 'secret!\n'), ['it is ***!'])
  assert.deepEqual(split('very\u001b[31m-sec\u001b[0mret\n'), ['***'])
})

test('a line has no control characters: a terminal that prints it would obey them', () => {
  const title = '\u001b]0;title\u0007'
  const clipboard = '\u001b]52;c;ZXZpbA==\u001b\\'

  assert.deepEqual(split(`${title}one${clipboard}\n`, '\u001bctwo\u0008\u009b2J\tx\n'), ['one', 'ctwo2J\tx'])
})

test('a line without an end is cut, and as clean as others', () => {
  const lines = split('\0\u001b[1mx'.repeat(10_000), 'very-secret'.repeat(2_000))

  assert.ok(lines.every((line) => line.length <= LINE_MAX))
  assert.match(lines.join(''), /^x{10000}(?:\*\*\*){2000}$/)
})
