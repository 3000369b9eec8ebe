/**
 * White space as a Dockerfile counts it: Unicode's, which String.prototype.trim does not follow exactly. These loops are
 * linear; an expression such as /\s+$/ is not, on a long gap in the middle of a line.
 */
const SPACE = /\p{White_Space}/u

export const isSpace = (char: string | undefined): boolean => char !== undefined && SPACE.test(char)

export function trimStart(text: string): string {
  let start = 0
  while (isSpace(text[start])) start += 1
  return text.slice(start)
}

export function trimEnd(text: string): string {
  let end = text.length
  while (isSpace(text[end - 1])) end -= 1
  return text.slice(0, end)
}

export const trim = (text: string): string => trimEnd(trimStart(text))
