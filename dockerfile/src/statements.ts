/**
 * Splits the text of a Dockerfile into statements, each an instruction with its heredocs. In this order:
 *
 *   1. Comments of the form `# name=value` at the very top are parser directives. The first line of any other kind ends
 *      them. `escape` chooses the escape character, `\` or `` ` ``.
 *   2. Outside heredocs, lines whose first visible character is `#` are comments, also between continued lines.
 *   3. A line that ends in the escape character, possibly followed by blanks, continues on the next one. The character
 *      and the line break vanish, leading white space of the next line remains. Comments and empty lines in between are
 *      skipped. An escape character before it makes it an ordinary character.
 *   4. A complete RUN, COPY or ADD whose words include `<<NAME` is followed by the text of the heredocs, in order.
 *      In there nothing is special but the line that ends it.
 */
import { DockerfileError, locate, Problem, quote } from './errors.ts'
import { findHeredocs, type Heredoc, type OpenedHeredoc } from './heredocs.ts'
import { trim, trimStart } from './space.ts'
import { type InstructionParts, splitInstruction } from './split-instruction.ts'
import type { EscapeCharacter } from './words.ts'

export type Statement = InstructionParts & {
  line: number
  endLine: number
  /** The whole instruction in one line, without its heredocs. */
  text: string
  heredocs: Heredoc[]
}

export type Directives = {
  escape: EscapeCharacter
  /** The parser that the file asks for, such as `docker/dockerfile:1`. */
  syntax: { value: string; line: number } | undefined
}

export function readStatements(text: string): { directives: Directives; statements: Statement[] } {
  const nul = text.indexOf('\0')
  if (nul >= 0) throw new DockerfileError({ line: text.slice(0, nul).split('\n').length }, 'remove the NUL character')
  const lines = splitLines(text)
  const directives = readDirectives(lines)
  const reader = new StatementReader(lines, directives.escape)
  return { directives, statements: reader.readAll() }
}

/** Lines keep their line breaks, which matter in heredocs. */
function splitLines(text: string): string[] {
  const lines = text.replace(/^\uFEFF/, '').split(/(?<=\n)/)
  return lines.at(-1) === '' ? lines.slice(0, -1) : lines
}

const DIRECTIVE = /^#\p{White_Space}*([a-zA-Z][a-zA-Z0-9]*)\p{White_Space}*=\p{White_Space}*(.+)$/u
const DIRECTIVES = ['syntax', 'escape', 'check']

function readDirectives(lines: string[]): Directives {
  const found = new Map<string, { value: string; line: number }>()
  for (const [i, text] of lines.entries()) {
    const line = i + 1
    const [, written = '', value = ''] = DIRECTIVE.exec(trim(text)) ?? []
    const name = written.toLowerCase()
    if (!DIRECTIVES.includes(name)) break
    if (found.has(name)) throw new DockerfileError({ line }, `the directive ${name} is repeated; remove one`)
    if (name === 'escape' && value !== '\\' && value !== '`') {
      throw new DockerfileError({ line }, `the directive escape cannot be ${quote(value)}, only \\ or \``)
    }
    found.set(name, { value, line })
  }
  return { escape: found.get('escape')?.value === '`' ? '`' : '\\', syntax: found.get('syntax') }
}

class StatementReader {
  readonly #lines: string[]
  readonly #escapeChar: EscapeCharacter
  readonly #continuation: RegExp
  /** Index of the next line, which is also the number of the one that was read last. */
  #at = 0

  constructor(lines: string[], escapeChar: EscapeCharacter) {
    this.#lines = lines
    this.#escapeChar = escapeChar
    this.#continuation = escapeChar === '\\' ? /(?<!\\)\\[ \t]*$/ : /(?<!`)`[ \t]*$/
  }

  readAll(): Statement[] {
    const statements: Statement[] = []
    while (this.#at < this.#lines.length) {
      const line = this.#at + 1
      const text = this.#readLogicalLine()
      if (text === undefined) continue
      const parts = splitInstruction(text, this.#escapeChar)
      const heredocs = locate({ line, name: parts.name }, () =>
        findHeredocs(text, this.#escapeChar).map((opened) => ({ ...opened, content: this.#readHeredoc(opened) })),
      )
      statements.push({ ...parts, line, endLine: this.#at, text, heredocs })
    }
    return statements
  }

  /** An instruction with its continuation lines, or undefined for a comment or an empty line. */
  #readLogicalLine(): string | undefined {
    const first = trimStart(withoutLineBreak(this.#lines[this.#at++]!))
    if (first === '' || first.startsWith('#')) return undefined
    const pieces = [first.replace(this.#continuation, '')]
    let isContinued = pieces[0] !== first
    while (isContinued && this.#at < this.#lines.length) {
      const next = withoutLineBreak(this.#lines[this.#at++]!)
      if (isCommentOrEmpty(next)) continue
      const piece = next.replace(this.#continuation, '')
      pieces.push(piece)
      isContinued = piece !== next
    }
    return trim(pieces.join(''))
  }

  #readHeredoc({ name, stripsTabs }: OpenedHeredoc): string {
    const first = this.#at
    while (this.#at < this.#lines.length) {
      const line = withoutLineBreak(this.#lines[this.#at++]!)
      const delimiter = stripsTabs ? line.replace(/^\t+/, '') : line
      if (delimiter === name) return this.#lines.slice(first, this.#at - 1).join('')
    }
    throw new Problem(`heredoc ${quote(name)} has no end; add a line that consists of ${quote(name)} alone`)
  }
}

function withoutLineBreak(line: string): string {
  let end = line.length
  while (line[end - 1] === '\n' || line[end - 1] === '\r') end -= 1
  return line.slice(0, end)
}

const isCommentOrEmpty = (line: string): boolean => /^\p{White_Space}*(#|$)/u.test(line)
