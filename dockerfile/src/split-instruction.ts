/** Splits an instruction, which is one line here, into its name, its flags and the rest. */
import { isSpace, trim } from './space.ts'
import type { EscapeCharacter } from './words.ts'

export type InstructionParts = {
  /** In upper case. */
  name: string
  /** The leading `--name=value` words, without quotes and escapes. */
  flags: string[]
  /** What follows, with quotes, escapes and variables as written. */
  rest: string
}

export function splitInstruction(text: string, escapeChar: EscapeCharacter): InstructionParts {
  const [word = ''] = /^[^\t\v\f\r ]+/.exec(text) ?? []
  const { flags, rest } = readFlags(text.slice(word.length), escapeChar)
  return { name: word.toUpperCase(), flags, rest }
}

/** Reads words that begin with `--`. Quotes group, escapes protect, and a lone `--` ends the flags. */
function readFlags(text: string, escapeChar: EscapeCharacter): { flags: string[]; rest: string } {
  const flags: string[] = []
  let at = 0
  const skipSpace = () => {
    while (isSpace(text[at])) at += 1
  }
  for (skipSpace(); text.startsWith('--', at); skipSpace()) {
    let flag = ''
    let openQuote = ''
    for (; at < text.length && (openQuote !== '' || !isSpace(text[at])); at++) {
      const char = text[at]!
      if (char === openQuote) openQuote = ''
      else if (openQuote === '' && (char === '"' || char === "'")) openQuote = char
      else if (char === escapeChar) flag += text[++at] ?? ''
      else flag += char
    }
    if (flag === '--') break
    flags.push(flag)
  }
  return { flags, rest: trim(text.slice(at)) }
}
