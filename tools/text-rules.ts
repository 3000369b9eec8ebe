/** What tools/check-text.ts looks for. Pure functions over the text of one file. */
import path from 'node:path'

export type TextFinding = { line: number; message: string }

/** The tracked files, by path from the root, and their text. */
export type Repository = { files: readonly string[]; read: (file: string) => string }

/** Words that have confused readers, each with what to write instead. */
export const DISCOURAGED_WORDS: readonly [pattern: RegExp, instead: string][] = [
  [/\bmend(s|ed|ing)?\b/i, 'fix, repair'],
  [/(?<!['"`])\b(nobody|somebody|anybody)\b(?!['"`])/i, 'name the actor: the caller, the client, the user, no process'],
  [/\bwhoever\b/i, 'name the actor: the caller, the owner'],
  [/\b(is|are|was|were|be|been|being) told\b(?! apart)/i, 'is notified, receives'],
  [/\b(go|goes|went|gone|going) on\b/i, 'continue, resume, keep running'],
  [/\bstands? (above|still|by itself|there)\b|\bstood still\b|\bstanding still\b/i, 'see above; is stopped; exists'],
  [/\bit stands\b|\bwhat stands\b|\bwhich stands\b/i, 'exists, is'],
  [/\bof (its|their|his|her) own\b/i, 'private, separate, dedicated'],
  [/\bby itself\b|\bby themselves\b/i, 'automatically, alone'],
  [/\b(hang|hangs|hung|hanging) up\b/i, 'disconnect, close the connection'],
  [/\blast words\b/i, 'the end of the output'],
  [/\btakes? its time\b/i, 'is slow'],
  [/\bwhat is left of\b/i, 'the remains, leftovers'],
  [/\bcomes? to be\b/i, 'is created'],
]

/** Section numbers of documents that a reader of the repository does not have. */
const OUTSIDE_REFERENCE = /\b(spec|wire|platform|issues?|reference|design) §?(\d+(\.\d+)*)\b/i
/** Decisions are linked by file name, so that a renumbering cannot leave a wrong number behind. */
const NUMBERED_DECISION = /\bdecisions? (\d+)\b/i

export function findDiscouragedWords(text: string): TextFinding[] {
  return linesOf(text).flatMap(({ line, content }) => {
    const hit = DISCOURAGED_WORDS.map(([pattern, instead]) => ({ match: pattern.exec(content), instead })).find(
      ({ match }) => match !== null,
    )
    return hit?.match ? [{ line, message: `"${hit.match[0]}": write instead: ${hit.instead}` }] : []
  })
}

export function findBrokenReferences(file: string, text: string, repository: Repository): TextFinding[] {
  const isMarkdown = file.endsWith('.md')
  return linesOf(text).flatMap(({ line, content }) => {
    const prose = isMarkdown ? content : commentOf(file, content)
    const messages = [
      ...outsideReferences(content),
      ...(isMarkdown ? brokenLinks(file, content, repository) : []),
      ...missingFiles(isMarkdown ? codeSpansOf(prose) : prose, repository),
      ...brokenDocsAnchors(prose, repository),
    ]
    return messages.map((message) => ({ line, message }))
  })
}

function outsideReferences(content: string): string[] {
  const outside = OUTSIDE_REFERENCE.exec(content)
  const decision = NUMBERED_DECISION.exec(content)
  return [
    ...(outside ? [`"${outside[0]}" is outside the repository: state the rule, or link a page of docs/`] : []),
    ...(decision ? [`"${decision[0]}": name the file in docs/decisions/`] : []),
  ]
}

const LINK = /\]\(([^)\s]+)\)/g

function brokenLinks(file: string, content: string, repository: Repository): string[] {
  return [...content.matchAll(LINK)].flatMap(([, target = '']) => {
    if (/^[a-z]+:/.test(target)) return []
    const [relative = '', anchor] = target.split('#')
    const linked = relative === '' ? file : path.join(path.dirname(file), relative).replace(/\/$/, '')
    if (!exists(linked, repository)) return [`the link to ${target} leads nowhere`]
    if (anchor === undefined || !linked.endsWith('.md')) return []
    return anchorsOf(linked, repository).has(anchor) ? [] : [`${linked} has no heading for #${anchor}`]
  })
}

/** A file of the repository by name or by the end of its path; a leading wildcard or placeholder makes it a pattern. */
const FILE_NAME = /(?<![\w*<>{}./…-])([\w][\w./-]*\.(?:ts|rs|sh|sql|py|pl))(?![\w/-])/g

function missingFiles(prose: string, repository: Repository): string[] {
  return [...prose.matchAll(FILE_NAME)]
    .map(([, name = '']) => name)
    .filter((name) => !repository.files.some((file) => file === name || file.endsWith(`/${name}`)))
    .map((name) => `there is no file ${name}`)
}

/** `docs/api.md#errors` in a comment. */
const DOCS_PAGE = /\bdocs\/([\w/-]+\.md)(?:#([\w-]+))?/g

function brokenDocsAnchors(prose: string, repository: Repository): string[] {
  return [...prose.matchAll(DOCS_PAGE)].flatMap(([reference, page = '', anchor]) => {
    const file = `docs/${page}`
    if (!repository.files.includes(file)) return [`there is no page ${file}`]
    if (anchor !== undefined && !anchorsOf(file, repository).has(anchor)) return [`no heading for ${reference}`]
    return []
  })
}

function exists(name: string, { files }: Repository): boolean {
  return files.some((file) => file === name || file.startsWith(`${name}/`))
}

/** The anchors that GitHub makes from the headings of a page. */
function anchorsOf(file: string, repository: Repository): Set<string> {
  const headings = repository.read(file).matchAll(/^#{1,6} (.+)$/gm)
  return new Set([...headings].map(([, heading = '']) => slugOf(heading)))
}

const slugOf = (heading: string): string =>
  heading
    .trim()
    .toLowerCase()
    .replace(/[^\w\- ]/g, '')
    .replaceAll(' ', '-')

/** The comment on a line of code; empty where there is none. Good enough for a check: strings with // count as one. */
function commentOf(file: string, content: string): string {
  if (/\.(ts|rs|css)$/.test(file)) return /(?:^\s*\*|\/\*|(?<!:)\/\/)(.*)$/.exec(content)?.[1] ?? ''
  if (file.endsWith('.sql')) return /--(.*)$/.exec(content)?.[1] ?? ''
  return /(?:^|\s)#(.*)$/.exec(content)?.[1] ?? ''
}

const codeSpansOf = (content: string): string => [...content.matchAll(/`([^`]+)`/g)].map(([, span]) => span).join(' ')

const linesOf = (text: string): { line: number; content: string }[] =>
  text.split('\n').map((content, i) => ({ line: i + 1, content }))
