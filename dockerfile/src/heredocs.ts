/**
 * Finds the heredocs of RUN, COPY and ADD in the shell form: words such as `<<EOF`, `<<-EOF`, `<<"EOF"` or `3<<EOF`. The
 * exec form has none, and neither have quoted words. Their text follows the instruction; statements.ts reads it.
 */
import { Problem } from './errors.ts'
import { splitInstruction } from './split-instruction.ts'
import { parseStringArray } from './string-array.ts'
import { type EscapeCharacter, splitText } from './words.ts'

export type Heredoc = {
  /** The delimiter without its quotes. */
  name: string
  /** Lines with their line breaks, without the delimiter. Tabs are not stripped. */
  content: string
  /** `<<-`: leading tabs of every line are to be removed. */
  stripsTabs: boolean
  /** The delimiter is unquoted, so variables in the content are to be replaced. */
  expands: boolean
}

/** One whose text was not read yet. */
export type OpenedHeredoc = Omit<Heredoc, 'content'>

const HEREDOC_INSTRUCTIONS = ['RUN', 'COPY', 'ADD']

/** The heredocs that an instruction, given as one line, opens. Throws a Problem. */
export function findHeredocs(text: string, escapeChar: EscapeCharacter): OpenedHeredoc[] {
  if (!text.includes('<<')) return []
  const outer = splitInstruction(text, escapeChar)
  // What ONBUILD delays can have heredocs too.
  const { name, rest } = outer.name === 'ONBUILD' ? splitInstruction(outer.rest, escapeChar) : outer
  if (!HEREDOC_INSTRUCTIONS.includes(name) || parseStringArray(rest) !== undefined) return []
  return splitWords(text).flatMap((word) => parseHeredocWord(word) ?? [])
}

/** The words as they are written. None if the line cannot be split: then its quotes are a matter of the shell. */
function splitWords(text: string): string[] {
  try {
    return splitText(text, { escapeChar: '\\', find: () => undefined, keepSyntax: true, keepUnset: true }).words
  } catch (error) {
    if (error instanceof Problem) return []
    throw error
  }
}

/** `<<EOF`, `<<-EOF`, `<<"EOF"` or `3<<EOF`; undefined for any other word. */
export function parseHeredocWord(word: string): OpenedHeredoc | undefined {
  const [, dash, delimiter = ''] = /^\d*<<(-?)\s*([^<]*)$/.exec(word) ?? []
  if (delimiter === '') return undefined
  const { words, isQuoted } = splitText(delimiter, { escapeChar: '\\', find: () => undefined, keepUnset: true })
  const [name] = words
  if (name === undefined || words.length > 1) return undefined
  return { name, stripsTabs: dash === '-', expands: !isQuoted }
}
