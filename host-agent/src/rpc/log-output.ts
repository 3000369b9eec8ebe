/**
 * What a process writes to stderr, as lines of the log. The process may have been taken over: what it writes is limited in length and
 * in number of lines, and cannot contain what a terminal would act on. It never gets the terminal itself.
 */
import type { Readable } from 'node:stream'
import type { Log } from '@warren/kit/log'

const LINE_MAX = 1_000
const LINES_PER_MINUTE = 100
const MINUTE_MS = 60_000

export function logOutput(name: string, output: Readable, log: Pick<Log, 'warn'>, now: () => number = Date.now): void {
  let rest = ''
  let count = 0
  let minuteAt = now()

  const write = (line: string): void => {
    if (now() - minuteAt >= MINUTE_MS) {
      minuteAt = now()
      count = 0
    }
    count += 1
    if (count <= LINES_PER_MINUTE) log.warn(`${name}: ${line.slice(0, LINE_MAX).replace(/[^\x20-\x7e]/g, '?')}`)
    else if (count === LINES_PER_MINUTE + 1) log.warn(`${name}: more output is left out for a minute`)
  }
  output.setEncoding('utf8')
  output.on('error', () => {}) // The process has ended.
  output.on('data', (chunk: string) => {
    const lines = (rest + chunk).split('\n')
    rest = lines.pop()!.slice(0, LINE_MAX) // `split` returns at least one part.
    for (const line of lines) if (line !== '') write(line)
  })
  output.on('end', () => rest !== '' && write(rest))
}
