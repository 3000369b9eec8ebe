import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Board } from './board.ts'

/** A terminal that understands what the board writes: text, line ends, "up" and "clear to the end". */
function createTerminal(columns = 60) {
  const lines: string[] = []
  return {
    isTTY: true,
    columns,
    lines,
    write(text: string) {
      // biome-ignore lint/suspicious/noControlCharactersInRegex: an escape sequence begins with one.
      for (const part of text.split(/(\x1b\[\d+A\x1b\[J)/)) {
        // biome-ignore lint/suspicious/noControlCharactersInRegex: as above.
        const up = /^\x1b\[(\d+)A/.exec(part)
        if (up) lines.splice(lines.length - Number(up[1]))
        else if (part !== '') lines.push(...part.replace(/\n$/, '').split('\n'))
      }
    },
  }
}

function createClock() {
  const clock = { ms: 0, now: () => clock.ms }
  return clock
}

test('on a terminal each task has one line that is updated in place, and ends as a message above the others', () => {
  const terminal = createTerminal()
  const clock = createClock()
  const board = new Board(terminal, clock.now)
  const first = board.start('devbox:1')
  const second = board.start('desktop:1')

  for (let n = 1; n <= 300; n += 1) first.progress(`installing Debian trixie: ${Math.round(n / 3)} %: package-${n}`)
  clock.ms = 2_500
  board.redraw()
  assert.deepEqual(terminal.lines, [
    '  devbox:1 … 2.5 s: installing Debian trixie: 100 %: packag',
    '  desktop:1 … 2.5 s',
  ])

  board.print('the control plane ended, starting it again')
  first.end(`  devbox:1 … ${first.seconds()} s`)
  assert.deepEqual(terminal.lines, [
    'the control plane ended, starting it again',
    '  devbox:1 … 2.5 s',
    '  desktop:1 … 2.5 s',
  ])

  second.end('  desktop:1 failed')
  assert.deepEqual(terminal.lines.slice(1), ['  devbox:1 … 2.5 s', '  desktop:1 failed'])
})

test('elsewhere a task prints a line per phase and one at its end, whatever the number of its reports', () => {
  const printed: string[] = []
  const board = new Board({ write: (text) => printed.push(text) }, createClock().now)
  const task = board.start('devbox:1')

  for (let n = 1; n <= 300; n += 1) task.progress(`installing Debian trixie: ${n}`)
  task.progress('packing the file system')
  board.redraw()
  task.end('  devbox:1 … 0.0 s')
  task.end('  again')

  assert.deepEqual(printed, [
    '  devbox:1: installing Debian trixie\n',
    '  devbox:1: packing the file system\n',
    '  devbox:1 … 0.0 s\n',
  ])
})
