/**
 * The patterns of `${x#p}`, `${x%p}` and `${x/p/word}`: `*` matches any text, `?` any character, and a backslash makes
 * `*`, `?`, `\`, `/` and `}` literal. There are no brackets.
 *
 * A pattern is a row of segments with a star between neighbours. A segment is found by trying each position, so a match
 * takes at most the length of the value times that of the pattern, and patterns are short.
 */
import { Problem, quote } from './errors.ts'

/** Characters of a segment; undefined is `?`. */
type Segment = (string | undefined)[]
/** At least one segment. The first is anchored where the match begins. */
export type Pattern = Segment[]

const PATTERN_MAX = 128
const ESCAPABLE = '*?\\/}'

export function parsePattern(text: string): Pattern {
  if (text.length > PATTERN_MAX) throw new Problem(`a pattern must not be longer than ${PATTERN_MAX} characters`)
  let segment: Segment = []
  const pattern = [segment]
  const chars = text[Symbol.iterator]()
  for (const char of chars) {
    if (char === '*') {
      segment = []
      pattern.push(segment)
    } else if (char === '?') segment.push(undefined)
    else if (char === '\\') {
      const escaped: string = chars.next().value ?? ''
      if (escaped === '' || !ESCAPABLE.includes(escaped)) {
        throw new Problem(
          `pattern ${quote(text)} has a backslash before ${quote(escaped)}; it can only precede ${ESCAPABLE}`,
        )
      }
      segment.push(escaped)
    } else segment.push(char)
  }
  return pattern
}

/** The value without the shortest or longest prefix that matches; the whole value if none does. */
export function removePrefix(pattern: Pattern, value: string, isLongest: boolean): string {
  const chars = [...value]
  const end = startsAt(chars, pattern[0]!, 0) ? findEnd(chars, pattern, 0, isLongest) : undefined
  return end === undefined ? value : chars.slice(end).join('')
}

/** A suffix is a prefix of the reversed value. */
export function removeSuffix(pattern: Pattern, value: string, isLongest: boolean): string {
  const reversed = pattern.map((segment) => segment.toReversed()).reverse()
  return reverse(removePrefix(reversed, reverse(value), isLongest))
}

const reverse = (text: string): string => [...text].reverse().join('')

/** Each match begins as early as possible and is as long as possible. */
export function replaceMatches(
  pattern: Pattern,
  value: string,
  replacement: string,
  isEvery: boolean,
  spend: (characters: number) => void,
): string {
  const chars = [...value]
  let result = ''
  let copied = 0
  let lastEnd: number | undefined
  for (let from = 0; from <= chars.length; ) {
    const start = findSegment(chars, pattern[0]!, from)
    const end = start === undefined ? undefined : findEnd(chars, pattern, start, true)
    if (start === undefined || end === undefined) break
    // An empty match directly after another match does not count: `*` matches a whole value once.
    if (end > start || start !== lastEnd) {
      spend(replacement.length)
      result += chars.slice(copied, start).join('') + replacement
      copied = end
      lastEnd = end
    }
    if (!isEvery) break
    from = end > start ? end : end + 1
  }
  return result + chars.slice(copied).join('')
}

/** Where a match ends whose first segment begins at `start`, or undefined. */
function findEnd(chars: string[], pattern: Pattern, start: number, isLongest: boolean): number | undefined {
  let end = start + pattern[0]!.length
  for (let i = 1; i < pattern.length; i++) {
    const segment = pattern[i]!
    // Segments before the last one are taken as early as possible: that leaves the most room for those that follow.
    const find = isLongest && i === pattern.length - 1 ? findLastSegment : findSegment
    const at = find(chars, segment, end)
    if (at === undefined) return undefined
    end = at + segment.length
  }
  return end
}

function findSegment(chars: string[], segment: Segment, from: number): number | undefined {
  for (let at = from; at + segment.length <= chars.length; at++) if (startsAt(chars, segment, at)) return at
  return undefined
}

function findLastSegment(chars: string[], segment: Segment, from: number): number | undefined {
  for (let at = chars.length - segment.length; at >= from; at--) if (startsAt(chars, segment, at)) return at
  return undefined
}

function startsAt(chars: string[], segment: Segment, at: number): boolean {
  if (at + segment.length > chars.length) return false
  for (let i = 0; i < segment.length; i++) if (segment[i] !== undefined && segment[i] !== chars[at + i]) return false
  return true
}
