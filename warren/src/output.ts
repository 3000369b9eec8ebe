/** What people see while they wait. */
import { errorText } from '@warren/kit/text'

export function say(text: string): void {
  process.stdout.write(`${text}\n`)
}

/** On a terminal one line that changes; in a file a line for each. */
function renderProgress(name: string, text: string, seconds: string): string {
  if (!process.stdout.isTTY) return `\n    ${text}`
  const line = `  ${name} … ${seconds} s: ${text}`
  return `\r\x1b[K${line.slice(0, (process.stdout.columns || 80) - 1)}`
}

/** Something went wrong: what, and why. */
export function complain(text: string, error: unknown): void {
  process.stderr.write(`warren: ${text === '' ? '' : `${text}: `}${errorText(error)}\n`)
}

/** Names what is being done before it is done, what it is at while it lasts, and how long it took after. */
export async function step<T>(name: string, work: (progress: (text: string) => void) => Promise<T>): Promise<T> {
  const startedAt = performance.now()
  const seconds = () => ((performance.now() - startedAt) / 1000).toFixed(1)
  process.stdout.write(`  ${name} …`)
  let told = false
  let phase = ''
  try {
    const result = await work((text) => {
      told = true
      // In a file only what is done counts, not each package of it.
      const [next = ''] = text.split(': ')
      if (process.stdout.isTTY || next !== phase) process.stdout.write(renderProgress(name, text, seconds()))
      phase = next
    })
    process.stdout.write(told && process.stdout.isTTY ? `\r\x1b[K  ${name} … ${seconds()} s\n` : ` ${seconds()} s\n`)
    return result
  } catch (error) {
    // A stop that was asked for has its own line.
    if ((error as Error).name !== 'AbortError') process.stdout.write(' failed\n')
    throw error
  }
}
