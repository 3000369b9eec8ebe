import assert from 'node:assert/strict'
import { PassThrough } from 'node:stream'
import { test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { logOutput } from './log-output.ts'

test('lines are logged with the name of the process, without what a terminal would act on', async () => {
  const { output, lines } = open()

  output.write('first\nsec')
  output.end('ond \x1b]0;title\x07\x1b[2J\n\nlast')
  await until(() => lines.length === 3)

  assert.deepEqual(lines, ['proxy: first', 'proxy: second ?]0;title??[2J', 'proxy: last'])
})

test('a flood is cut: long lines, lines without an end, and too many lines', async () => {
  const clock = { now: 0 }
  const { output, lines } = open(() => clock.now)

  output.write(`${'x'.repeat(5_000)}\n`)
  for (let i = 0; i < 50; i++) output.write('y'.repeat(10_000))
  output.write('\n')
  output.write('z\n'.repeat(1_000))
  await until(() => lines.length === 101)
  clock.now += 60_000
  output.write('after a minute\n')
  await until(() => lines.length === 102)

  assert.equal(Math.max(...lines.map((line) => line.length)), 'proxy: '.length + 1_000)
  assert.equal(lines[100], 'proxy: more output is left out for a minute')
  assert.equal(lines[101], 'proxy: after a minute')
})

function open(now?: () => number): { output: PassThrough; lines: string[] } {
  const output = new PassThrough()
  const lines: string[] = []
  logOutput('proxy', output, { warn: (line: unknown) => void lines.push(line as string) }, now)
  return { output, lines }
}
