/** What can be wrong with a Dockerfile. Every failure of this workspace is a DockerfileError. */

/** Says where, what and how to fix it: `line 3, RUN: heredoc EOF has no end; add a line that consists of EOF alone`. */
export class DockerfileError extends Error {
  /** Counted from 1. The line on which the instruction begins. */
  readonly line: number
  /** In upper case; an unknown one as written. Absent where the line is not an instruction. */
  readonly instruction: string | undefined

  constructor(at: Place, problem: string, options?: ErrorOptions) {
    super(`line ${at.line}${at.name ? `, ${quoteName(at.name)}` : ''}: ${problem}`, options)
    this.name = 'DockerfileError'
    this.line = at.line
    this.instruction = at.name
  }
}

export type Place = { line: number; name?: string }

/** A problem found by code that does not know its line. `locate` adds it. */
export class Problem extends Error {}

/** Runs work that may throw a Problem of the instruction at this place. */
export function locate<Result>(at: Place, work: () => Result): Result {
  try {
    return work()
  } catch (error) {
    if (error instanceof Problem) throw new DockerfileError(at, error.message, { cause: error })
    throw error
  }
}

const QUOTED_MAX = 60

/** Part of a Dockerfile inside a message, on one line and not too long. */
export function quote(text: string): string {
  const shown = JSON.stringify(text.length > QUOTED_MAX ? `${text.slice(0, QUOTED_MAX)}…` : text)
  // Unicode's line breaks, which JSON leaves alone.
  return shown.replace(/[\u0085\u2028\u2029]/g, (char) => `\\u${char.charCodeAt(0).toString(16).padStart(4, '0')}`)
}

/** Names of known instructions are short and plain; anything else is quoted. */
const quoteName = (name: string): string => (/^[A-Z]{1,20}$/.test(name) ? name : quote(name))
