/** What `warren start` prints on the terminal. */
import { errorText } from '@warren/kit/error-text'

export function print(text: string): void {
  process.stdout.write(`${text}\n`)
}

/** `text` says what failed; empty when the error says it already. */
export function printError(text: string, error: unknown): void {
  process.stderr.write(`warren: ${text === '' ? '' : `${text}: `}${errorText(error)}\n`)
}

/** Prints the name of a step before it runs, its progress while it runs, and the time it took. */
export async function printStep<T>(name: string, work: (progress: (text: string) => void) => Promise<T>): Promise<T> {
  const startedAt = performance.now()
  const seconds = () => ((performance.now() - startedAt) / 1000).toFixed(1)
  process.stdout.write(`  ${name} …`)
  let hasProgress = false
  let phase = ''
  try {
    const result = await work((text) => {
      hasProgress = true
      // "installing: libc6" is the phase "installing"; a log file gets one line per phase, not one per package.
      const [next = ''] = text.split(': ')
      if (process.stdout.isTTY || next !== phase) process.stdout.write(renderProgress(name, text, seconds()))
      phase = next
    })
    const overwrite = hasProgress && process.stdout.isTTY
    process.stdout.write(overwrite ? `\r\x1b[K  ${name} … ${seconds()} s\n` : ` ${seconds()} s\n`)
    return result
  } catch (error) {
    // An abort means that Warren is stopping, which has been printed already.
    if ((error as Error).name !== 'AbortError') process.stdout.write(' failed\n')
    throw error
  }
}

/** On a terminal the line is overwritten; a file gets a new line. */
function renderProgress(name: string, text: string, seconds: string): string {
  if (!process.stdout.isTTY) return `\n    ${text}`
  const line = `  ${name} … ${seconds} s: ${text}`
  return `\r\x1b[K${line.slice(0, (process.stdout.columns || 80) - 1)}`
}
