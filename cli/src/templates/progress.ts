/**
 * Shows the log of a build as `docker build` does. On a terminal each step has one line: while it runs with its time and
 * last output, afterwards with the time it took. If it fails, the end of its output is shown. Elsewhere (a pipe, a file) the
 * log is printed as it is.
 */
import { Board, type Output, type Task } from '@warren/kit/board'

/** Of a step that failed. */
const OUTPUT_LINES_MAX = 50

export class BuildProgress {
  readonly #output: Output
  readonly #board: Board
  #step: { number: string; title: string; task: Task; output: string[] } | undefined

  constructor(output: Output, now?: () => number) {
    this.#output = output
    this.#board = new Board(output, now)
  }

  /** `line` is without its line ending. */
  add(line: string): void {
    const [, begun, title] = /^#(\d+) (\[\d+\/\d+\] .*)$/.exec(line) ?? []
    const [, ended, result] = /^#(\d+) (CACHED|DONE [\d.]+ ?s)$/.exec(line) ?? []
    if (!this.#output.isTTY) this.#output.write(`${line}\n`)
    else if (begun !== undefined && title !== undefined && this.#isNext(begun)) this.#begin(begun, title)
    else if (result !== undefined && ended === this.#step?.number) this.#end(result)
    else if (this.#step) this.#addOutput(line)
    else this.#board.print(line)
  }

  /** The build has failed: the last lines say why. */
  fail(): void {
    const step = this.#step
    this.#step = undefined
    step?.task.end(` => ERROR ${step.title}  ${step.task.seconds()}s`)
    for (const line of step?.output ?? []) this.#board.print(`    ${line}`)
  }

  /** Leaves the terminal as an ordinary program does, also if the log was interrupted. */
  close(): void {
    this.#step?.task.end(` => ${this.#step.title}`)
    this.#step = undefined
  }

  /** Output of a step may look like the beginning of one. A new attempt begins with step 1. */
  #isNext(number: string): boolean {
    return !this.#step || number === '1'
  }

  #begin(number: string, title: string): void {
    this.close()
    this.#step = { number, title, task: this.#board.start(` => ${title}`), output: [] }
  }

  #end(result: string): void {
    const { title, task } = this.#step! // Compared by the caller.
    task.end(result === 'CACHED' ? ` => CACHED ${title}` : ` => ${title}  ${result.slice('DONE '.length)}`)
    this.#step = undefined
  }

  #addOutput(line: string): void {
    const { output, task } = this.#step! // Compared by the caller.
    output.push(line)
    if (output.length > OUTPUT_LINES_MAX) output.shift()
    task.progress(printable(line))
  }
}

/** Output of a build may move the cursor or colour the terminal; in a line that is drawn again it must not. */
const printable = (line: string): string =>
  // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is removed.
  line.replace(/\x1b\[[0-9;?]*[A-Za-z]/g, '').replace(/[\x00-\x1f\x7f]/g, ' ')
