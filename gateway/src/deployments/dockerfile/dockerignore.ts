/**
 * `.dockerignore`: which files of the context COPY and ADD do not see. As in Docker, the last pattern that matches a file or one
 * of its folders decides, `!` takes back, and patterns are those of Go's filepath.Match with `**` for any number of folders.
 */

type Rule = { isExcluded: boolean; matches: (path: string) => boolean }

export function findIgnored(text: string, paths: Iterable<string>): string[] {
  const rules = parseRules(text)
  if (rules.length === 0) return []
  return [...paths].filter((path) => isIgnored(rules, path))
}

function parseRules(text: string): Rule[] {
  return text
    .replace(/^\uFEFF/, '')
    .split(/\r?\n/)
    .filter((line) => !line.startsWith('#'))
    .map((line) => line.trim())
    .flatMap((line) => {
      const isExcluded = !line.startsWith('!')
      const pattern = cleanPath(isExcluded ? line : line.slice(1).trim())
      return pattern === '' || pattern === '.' ? [] : [{ isExcluded, matches: compile(pattern) }]
    })
}

/** Relative to the context, without `.` and empty parts; `..` cannot leave it. */
function cleanPath(pattern: string): string {
  const parts: string[] = []
  for (const part of pattern.split('/')) {
    if (part === '' || part === '.') continue
    if (part === '..') parts.pop()
    else parts.push(part)
  }
  return parts.join('/')
}

function isIgnored(rules: Rule[], path: string): boolean {
  const parts = path.split('/')
  const prefixes = parts.map((_, i) => parts.slice(0, i + 1).join('/'))
  return rules.reduce(
    (ignored, { isExcluded, matches }) => (prefixes.some((prefix) => matches(prefix)) ? isExcluded : ignored),
    false,
  )
}

const SPECIAL = /[.+^${}()|\\[\]]/g

/** A pattern that is not valid matches nothing: the build would otherwise copy less than its author sees. */
function compile(pattern: string): (path: string) => boolean {
  const token = /\*\*\/|\*\*|\*|\?|\\.|\[\^?[^\]]*\]|[^*?\\[]+|./gs
  const source = pattern.replace(token, (part) => {
    if (part === '**/') return '(?:.*/)?'
    if (part === '**') return '.*'
    if (part === '*') return '[^/]*'
    if (part === '?') return '[^/]'
    if (part.length > 2 && part.startsWith('[')) return part.replaceAll('\\', '\\\\')
    if (part.length === 2 && part.startsWith('\\')) return part.slice(1).replace(SPECIAL, '\\$&')
    return part.replace(SPECIAL, '\\$&')
  })
  try {
    const expression = new RegExp(`^${source}$`, 's')
    return (path) => expression.test(path)
  } catch {
    return () => false
  }
}
