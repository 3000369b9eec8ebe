/**
 * What services print. One in a jail never gets our stdout itself: in a log file it could overwrite the lines of others, and
 * from a terminal it could read what is typed. What it prints reaches them without characters that a terminal would act on.
 */
import type { Readable } from 'node:stream'

/** Of output that is kept: more than the message of an error has. */
const KEPT_MAX = 100_000

/** Tabs and ends of lines stay. */
export const printable = (text: string): string => text.replace(/[^\t\n\P{Cc}]/gu, '?')

export function copyToStdout(output: Readable): void {
  output.setEncoding('utf8').on('data', (chunk: string) => process.stdout.write(printable(chunk)))
}

/** Keeps the end of the output until it is taken. After `release` it is written to our stderr, with all later output. */
export function keepOutput(output: Readable): { take(): string; release(): void } {
  let kept = ''
  const append = (chunk: string) => {
    kept = (kept + printable(chunk)).slice(-KEPT_MAX)
  }
  output.setEncoding('utf8').on('data', append)
  return {
    take() {
      const text = kept
      kept = ''
      return text
    },
    release() {
      output.off('data', append)
      output.on('data', (chunk: string) => process.stderr.write(printable(chunk)))
      setImmediate(() => process.stderr.write(kept))
    },
  }
}
