/** What `warren start` prints. */

import { Board, type Task } from '@warren/kit/board'
import { errorText } from '@warren/kit/error-text'

const board = new Board(process.stdout)

export function print(text: string): void {
  board.print(text)
}

/** `text` says what failed; empty when the error says it already. */
export function printError(text: string, error: unknown): void {
  const message = `warren: ${text === '' ? '' : `${text}: `}${errorText(error)}`
  board.print(message, (chunk) => process.stderr.write(chunk))
}

/** Shows a step while it runs, with its progress, and then the time it took. */
export async function printStep<T>(name: string, work: (progress: (text: string) => void) => Promise<T>): Promise<T> {
  const task = board.start(name)
  try {
    const result = await work(task.progress)
    task.end(`  ${name} … ${task.seconds()} s`)
    return result
  } catch (error) {
    task.end(`  ${name} … ${(error as Error).name === 'AbortError' ? 'aborted' : 'failed'}`)
    throw error
  }
}

const background = new Map<string, Task>()

/**
 * Progress of work after the start: `devbox:1: installing Debian trixie: 42 %`. Each build has one line until it reports
 * `ready` or a failure.
 */
export function printBackgroundProgress(text: string): void {
  const failed = /^failed to build (\S+): /.exec(text)?.[1]
  const [, name, progress] = /^(\S+): (.+)$/s.exec(text) ?? []
  if (failed !== undefined) endBackground(failed, `  ${text}`)
  else if (name === undefined || progress === undefined) print(`  ${text}`)
  else if (progress === 'ready') {
    const seconds = background.get(name)?.seconds()
    const rest = background.size > 1 ? '' : '; background work is done'
    endBackground(name, `  ${name} is ready after ${seconds} s${rest}`)
  } else {
    const task = background.get(name) ?? board.start(name)
    background.set(name, task)
    task.progress(progress)
  }
}

function endBackground(name: string, text: string): void {
  const task = background.get(name)
  background.delete(name)
  if (task) task.end(text)
  else print(text)
}
