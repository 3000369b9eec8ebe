/**
 * Keeps the repository's text plain and its references alive; part of `npm run check`. With arguments, only those files
 * and folders are read: `node tools/check-text.ts host-agent/src/net`.
 *
 * Two rules, over every tracked text file:
 *
 *   1. No word of DISCOURAGED_WORDS (tools/text-rules.ts): each has a plainer replacement.
 *   2. Every reference resolves: links and anchors in Markdown, file names in comments and in Markdown code spans. A
 *      section number of a document outside the repository never does.
 */
import { execFileSync } from 'node:child_process'
import { existsSync, readFileSync } from 'node:fs'
import path from 'node:path'
import { findBrokenReferences, findDiscouragedWords, type TextFinding } from './text-rules.ts'

const ROOT = path.resolve(import.meta.dirname, '..')
const TEXT_FILE = /\.(ts|rs|sh|md|py|pl|toml|sql|html|css)$|^\.ci\/run$/
/** These hold the discouraged words on purpose. */
const RULES = ['tools/text-rules.ts', 'tools/text-rules.test.ts']
/** Databases record which migrations ran; an applied one is never edited again. */
const APPLIED_MIGRATIONS = /^control-plane\/src\/db\/migrations\/000[1-5]_/

const tracked = execFileSync('git', ['ls-files', '--cached', '--others', '--exclude-standard', '-z'], {
  cwd: ROOT,
  encoding: 'utf8',
})
  .split('\0')
  .filter((file) => file !== '' && existsSync(path.join(ROOT, file)))
const chosen = process.argv.slice(2).map((argument) => path.relative(ROOT, path.resolve(argument)))
const files = tracked.filter(
  (file) =>
    TEXT_FILE.test(file) &&
    !RULES.includes(file) &&
    !APPLIED_MIGRATIONS.test(file) &&
    (chosen.length === 0 || chosen.some((prefix) => file === prefix || file.startsWith(`${prefix}/`))),
)

const repository = { files: tracked, read: (file: string) => readFileSync(path.join(ROOT, file), 'utf8') }
let count = 0
for (const file of files) {
  const text = repository.read(file)
  for (const finding of [...findDiscouragedWords(text), ...findBrokenReferences(file, text, repository)]) {
    count++
    print(file, finding)
  }
}
if (count > 0) {
  process.stderr.write(`\n${count} findings in the text of ${files.length} files\n`)
  process.exit(1)
}
process.stdout.write(`Checked the text of ${files.length} files.\n`)

function print(file: string, { line, message }: TextFinding): void {
  process.stderr.write(`${file}:${line}: ${message}\n`)
}
