/**
 * The word language of a Dockerfile: quotes, escapes and variables, a subset of what a POSIX shell knows.
 *
 *   'text'                    literal
 *   "text"                    literal, but variables are replaced; \ protects ", $ and \
 *   \c                        literal c. The escape directive can replace \ by `
 *   $x, ${x}                  the value, empty if x is unset
 *   ${x-word}, ${x:-word}     the value; the word if x is unset (with a colon: or empty)
 *   ${x+word}, ${x:+word}     the word if x is set (with a colon: and not empty), otherwise empty
 *   ${x?word}, ${x:?word}     the value; an error with the word as its text if x is unset (with a colon: or empty)
 *   ${x#p}, ${x##p}           the value without the shortest or longest prefix that matches the pattern (pattern.ts)
 *   ${x%p}, ${x%%p}           the same for a suffix
 *   ${x/p/word}, ${x//p/word} the value with the first match, or every match, replaced
 *
 * Words may contain variables again. Time is linear in the length of the text and of the values it refers to, which
 * `spend` lets the caller limit: a variable can double with each line, so a short file could describe gigabytes.
 */
import { Problem, quote } from './errors.ts'
import { parsePattern, removePrefix, removeSuffix, replaceMatches } from './pattern.ts'
import { isSpace } from './space.ts'

export type EscapeCharacter = '\\' | '`'

export type WordRules = {
  escapeChar: EscapeCharacter
  /** The value of a variable, or undefined if it is unset. */
  find: (name: string) => string | undefined
  /** Is called with the number of characters that a variable contributes. May throw. */
  spend?: (characters: number) => void
  /** A reference to an unset variable remains as it is written. */
  keepUnset?: boolean
  /** Quotes and escapes remain as they are written; they only decide where words end. */
  keepSyntax?: boolean
  /** Quotes are ordinary characters, as in the text of a heredoc. */
  ignoreQuotes?: boolean
}

/** Throws a Problem if a quote or a brace is not closed, or if a substitution is not known. */
export const expandWord = (text: string, rules: WordRules): string => new WordReader(text, rules).read()

export type SplitText = {
  /** The expanded text, split at white space that is neither quoted nor escaped. Empty words are left out. */
  words: string[]
  /** Whether any part of it was quoted. */
  isQuoted: boolean
}

/** As expandWord, but white space in the text and in values of variables separates words. */
export function splitText(text: string, rules: WordRules): SplitText {
  const words = new WordList()
  const reader = new WordReader(text, rules)
  reader.read(words)
  return { words: words.end(), isQuoted: reader.isQuoted }
}

/**
 * What becomes of an escape character:
 *
 *   resolve  it is removed
 *   keep     it remains, for a text that is read a second time
 *   pattern  it remains, and a literal one in quotes is doubled, because a pattern has escapes too
 */
type Escapes = 'resolve' | 'keep' | 'pattern'

/** Deeper than any real file, and far from the end of the stack. */
const NESTING_MAX = 100

const NAME = /\p{Nd}+|[@*#?$!-]|[\p{L}_][\p{L}\p{Nd}_]*/uy
const BLANKS = /[\t\r ]*/y

class WordReader {
  readonly #text: string
  readonly #rules: WordRules
  #at = 0
  #depth = 0
  isQuoted = false

  constructor(text: string, rules: WordRules) {
    this.#text = text
    this.#rules = rules
  }

  read(words?: WordList): string {
    return this.#readUntil(undefined, this.#rules.keepSyntax ? 'keep' : 'resolve', words)
  }

  /** Reads up to and including the end character, or to the end of the text if there is none. */
  #readUntil(end: string | undefined, escapes: Escapes, words?: WordList): string {
    let result = ''
    const addWhole = (piece: string) => {
      result += piece
      words?.addWhole(piece)
    }
    for (let char = this.#peek(); char !== ''; char = this.#peek()) {
      if (char === end) {
        this.#at += 1
        return result
      }
      if (char === '$') {
        const value = this.#readVariable()
        result += value
        words?.addSplit(value)
      } else if (char === "'" && !this.#rules.ignoreQuotes) addWhole(this.#readSingleQuoted(escapes))
      else if (char === '"' && !this.#rules.ignoreQuotes) addWhole(this.#readDoubleQuoted(escapes))
      else if (char === this.#rules.escapeChar) addWhole(this.#readEscaped(escapes))
      else if (this.#text.startsWith('<<', this.#at)) addWhole(this.#readHeredocOperator())
      else {
        this.#at += 1
        result += char
        words?.addSplit(char)
      }
    }
    if (end !== undefined) throw new Problem(`${end} is missing; close the substitution that begins with \${`)
    return result
  }

  #readEscaped(escapes: Escapes): string {
    const escapeChar = this.#next()
    const escaped = this.#next()
    return escapes === 'resolve' ? escaped : escapeChar + escaped
  }

  /** `<< EOF` is one word, although there is a blank in it. */
  #readHeredocOperator(): string {
    this.#at += 2
    return `<<${this.#match(BLANKS)}`
  }

  #readSingleQuoted(escapes: Escapes): string {
    const close = this.#text.indexOf("'", this.#at + 1)
    if (close < 0) throw new Problem("a single quote is not closed; add the other ' or escape it")
    const inside = this.#text.slice(this.#at + 1, close)
    this.#at = close + 1
    return this.#quoted("'", escapes === 'pattern' ? inside.replaceAll(this.#rules.escapeChar, '$&$&') : inside)
  }

  #readDoubleQuoted(escapes: Escapes): string {
    this.#at += 1
    let inside = ''
    for (;;) {
      const char = this.#peek()
      if (char === '') throw new Problem('a double quote is not closed; add the other " or escape it')
      if (char === '$') {
        inside += this.#readVariable()
        continue
      }
      this.#at += 1
      if (char === '"') return this.#quoted('"', inside)
      inside += char === this.#rules.escapeChar ? this.#readEscapedInQuotes(escapes) : char
    }
  }

  /** Called after an escape character: only ", $ and itself can be escaped, before anything else it is literal. */
  #readEscapedInQuotes(escapes: Escapes): string {
    const { escapeChar, keepSyntax } = this.#rules
    const escaped = this.#peek()
    if (escaped === '"' || escaped === '$' || escaped === escapeChar) {
      this.#at += 1
      return escapes === 'resolve' ? escaped : escapeChar + escaped
    }
    if (escaped === '') return ''
    const isDoubled = escapes === 'pattern' || (escapes === 'keep' && !keepSyntax)
    return isDoubled ? escapeChar + escapeChar : escapeChar
  }

  #quoted(mark: string, inside: string): string {
    this.isQuoted = true
    return this.#rules.keepSyntax ? mark + inside + mark : inside
  }

  #readVariable(): string {
    this.#at += 1
    if (this.#peek() === '{') return this.#readBraces()
    const name = this.#match(NAME)
    if (name === '') return '$'
    return this.#find(name) ?? (this.#rules.keepUnset ? `$${name}` : '')
  }

  #readBraces(): string {
    this.#depth += 1
    if (this.#depth > NESTING_MAX)
      throw new Problem(`substitutions are nested more than ${NESTING_MAX} deep; use an ENV in between`)
    this.#at += 1
    if ('{}:'.includes(this.#peek() || '}')) throw new Problem('a variable in braces needs a name')
    const name = this.#match(NAME)
    const result = this.#substitute(name, this.#next())
    this.#depth -= 1
    return result
  }

  #substitute(name: string, operator: string): string {
    switch (operator) {
      case '}':
        return this.#find(name) ?? (this.#rules.keepUnset ? `\${${name}}` : '')
      case ':':
        return this.#substituteWord(name, this.#next(), true)
      case '-':
      case '+':
      case '?':
        return this.#substituteWord(name, operator, false)
      case '#':
      case '%':
        return this.#removeMatch(name, operator)
      case '/':
        return this.#replaceMatch(name)
      case '':
        throw new Problem(`} is missing after \${${name}`)
      default:
        throw unknownSubstitution(name + operator)
    }
  }

  /** `emptyIsUnset` is the meaning of the colon. */
  #substituteWord(name: string, operator: string, emptyIsUnset: boolean): string {
    const spelling = `${emptyIsUnset ? ':' : ''}${operator}`
    if (operator === '#' || operator === '%') throw unknownSubstitution(name + spelling)
    const word = this.#readUntil('}', 'resolve')
    const value = this.#find(name)
    if (value === undefined && this.#rules.keepUnset) return `\${${name}${spelling}${word}}`
    const isSet = value !== undefined && !(emptyIsUnset && value === '')
    switch (operator) {
      case '-':
        return isSet ? value : word
      case '+':
        return isSet ? word : ''
      case '?':
        if (isSet) return value
        throw new Problem(
          `${name}: ${word || `is ${value === undefined ? 'not set' : 'empty'}; set it with ARG or ENV`}`,
        )
      default:
        throw unknownSubstitution(name + spelling)
    }
  }

  #removeMatch(name: string, operator: '#' | '%'): string {
    const written = this.#readUntil('}', 'pattern')
    const value = this.#find(name)
    if (value === undefined && this.#rules.keepUnset) return `\${${name}${operator}${written}}`
    const isLongest = written.startsWith(operator)
    const pattern = parsePattern(isLongest ? written.slice(1) : written)
    const remove = operator === '#' ? removePrefix : removeSuffix
    return remove(pattern, value ?? '', isLongest)
  }

  #replaceMatch(name: string): string {
    const isEvery = this.#peek() === '/'
    if (isEvery) this.#at += 1
    const written = this.#readUntil('/', 'pattern')
    const replacement = this.#readUntil('}', 'keep')
    const value = this.#find(name)
    if (value === undefined && this.#rules.keepUnset)
      return `\${${name}/${isEvery ? '/' : ''}${written}/${replacement}}`
    const spend = this.#rules.spend ?? (() => {})
    return replaceMatches(parsePattern(written), value ?? '', replacement, isEvery, spend)
  }

  #find(name: string): string | undefined {
    const value = this.#rules.find(name)
    if (value !== undefined) this.#rules.spend?.(value.length)
    return value
  }

  /** The next character, or an empty string at the end. Half of a surrogate pair counts as one: none is special. */
  #peek(): string {
    return this.#text.charAt(this.#at)
  }

  #next(): string {
    const code = this.#text.codePointAt(this.#at)
    if (code === undefined) return ''
    const char = String.fromCodePoint(code)
    this.#at += char.length
    return char
  }

  #match(expression: RegExp): string {
    expression.lastIndex = this.#at
    const found = expression.exec(this.#text)?.[0] ?? ''
    this.#at += found.length
    return found
  }
}

class WordList {
  readonly #words: string[] = []
  #current = ''

  /** Unquoted text: white space ends a word. */
  addSplit(text: string): void {
    for (const char of text) {
      if (isSpace(char)) this.#endWord()
      else this.#current += char
    }
  }

  addWhole(text: string): void {
    this.#current += text
  }

  end(): string[] {
    this.#endWord()
    return this.#words
  }

  #endWord(): void {
    if (this.#current !== '') this.#words.push(this.#current)
    this.#current = ''
  }
}

const unknownSubstitution = (text: string) =>
  new Problem(
    `\${${quote(text).slice(1, -1)}… is not a known substitution; use one of - + ? # % / or a RUN with a shell`,
  )
