/**
 * What `warren start` and `warren bases prepare` show while they work. On a terminal every running task has one line at the
 * bottom, which is updated in place, and finished tasks and messages scroll away above them. Elsewhere (a pipe, a log file)
 * each task prints one line per phase and one when it ends.
 *
 * A task reports `phase: detail`, for example `installing Debian trixie: 42 %: Setting up libc6`. The detail is shown on a
 * terminal only.
 */
export type Output = { isTTY?: boolean; columns?: number; write(text: string): unknown }

export type Task = {
  progress(text: string): void
  /** Removes the line of the task. `text` is printed instead. */
  end(text: string): void
  seconds(): string
}

type Line = { name: string; startedAt: number; text: string; phase: string }

const REDRAW_MS = 200

export class Board {
  readonly #output: Output
  readonly #now: () => number
  readonly #lines: Line[] = []
  /** Number of lines below the last message, which the next write erases. */
  #drawn = 0
  #timer: NodeJS.Timeout | undefined

  constructor(output: Output, now: () => number = () => performance.now()) {
    this.#output = output
    this.#now = now
  }

  /** Writes a message above the lines of the running tasks. */
  print(text: string, write: (text: string) => unknown = (chunk) => this.#output.write(chunk)): void {
    this.#erase()
    write(`${text}\n`)
    this.#draw()
  }

  start(name: string): Task {
    const line: Line = { name, startedAt: this.#now(), text: '', phase: '' }
    this.#lines.push(line)
    this.redraw()
    // Unreferenced: an instance that has nothing else to do may exit.
    this.#timer ??= setInterval(() => this.redraw(), REDRAW_MS).unref()
    return {
      progress: (text) => this.#progress(line, text),
      end: (text) => {
        const index = this.#lines.indexOf(line)
        if (index < 0) return
        this.#lines.splice(index, 1)
        if (this.#lines.length === 0) this.#stopTimer()
        this.print(text)
      },
      seconds: () => this.#seconds(line),
    }
  }

  redraw(): void {
    if (!this.#output.isTTY) return
    this.#erase()
    this.#draw()
  }

  #progress(line: Line, text: string): void {
    const [phase = ''] = text.split(': ')
    const isNewPhase = phase !== line.phase
    line.text = text
    line.phase = phase
    if (!this.#output.isTTY && isNewPhase) this.print(`  ${line.name}: ${phase}`)
  }

  #seconds(line: Line): string {
    return ((this.#now() - line.startedAt) / 1000).toFixed(1)
  }

  #draw(): void {
    if (!this.#output.isTTY || this.#lines.length === 0) return
    const width = (this.#output.columns || 80) - 1
    const lines = this.#lines.map((line) => {
      const text = line.text === '' ? '' : `: ${line.text}`
      return `  ${line.name} … ${this.#seconds(line)} s${text}`.slice(0, width)
    })
    this.#output.write(`${lines.join('\n')}\n`)
    this.#drawn = lines.length
  }

  #erase(): void {
    if (this.#drawn > 0) this.#output.write(`\x1b[${this.#drawn}A\x1b[J`)
    this.#drawn = 0
  }

  #stopTimer(): void {
    clearInterval(this.#timer)
    this.#timer = undefined
  }
}
