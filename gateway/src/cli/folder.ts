/**
 * The files of a project folder, without those that `.gitignore` and `.warrenignore` name, in any folder of it. `.git` and
 * `node_modules` are never part of it: packages are installed by the build.
 */
import { open, readdir, readFile, stat } from 'node:fs/promises'
import path from 'node:path'
import ignore, { type Ignore } from 'ignore'

export type FolderFile = { path: string; content: Buffer; isExecutable: boolean }
export type FolderContent = {
  files: FolderFile[] /** Left out, because an upload cannot contain them. */
  skipped: string[]
}

const ALWAYS = ['.git', 'node_modules']
const IGNORE_FILES = ['.gitignore', '.warrenignore']

/** A rule file applies to its folder and what is below it. */
type Rules = { folder: string; matcher: Ignore }

export async function readFolder(root: string): Promise<FolderContent> {
  const content: FolderContent = { files: [], skipped: [] }
  await checkFolder(root)
  await walk(root, '', [], content)
  content.files.sort((a, b) => (a.path < b.path ? -1 : 1))
  return content
}

async function checkFolder(root: string): Promise<void> {
  const found = await stat(root).catch((cause) => {
    throw new Error(`failed to read the folder ${root}`, { cause })
  })
  if (!found.isDirectory()) throw new Error(`${root} is not a folder; name the folder of the project`)
}

async function walk(root: string, folder: string, above: Rules[], content: FolderContent): Promise<void> {
  const rules = [...above, ...(await readRules(root, folder))]
  const entries = await readdir(path.join(root, folder), { withFileTypes: true })
  for (const entry of entries) {
    const name = path.posix.join(folder, entry.name)
    if (ALWAYS.includes(entry.name) || isIgnored(rules, name, entry.isDirectory())) continue
    if (entry.isDirectory()) await walk(root, name, rules, content)
    else if (entry.isFile()) content.files.push(await readOne(root, name))
    else content.skipped.push(name)
  }
}

async function readRules(root: string, folder: string): Promise<Rules[]> {
  const texts = await Promise.all(
    IGNORE_FILES.map((name) => readFile(path.join(root, folder, name), 'utf8').catch(() => '')),
  )
  // One matcher for both, so that the later file can take back what the earlier one ignores.
  return texts.every((text) => text === '') ? [] : [{ folder, matcher: ignore().add(texts.join('\n')) }]
}

/** The nearest rule file that says something decides, as in git. */
function isIgnored(rules: Rules[], name: string, isFolder: boolean): boolean {
  for (const { folder, matcher } of rules.toReversed()) {
    const { ignored, unignored } = matcher.test(`${path.posix.relative(folder, name)}${isFolder ? '/' : ''}`)
    if (ignored || unignored) return ignored
  }
  return false
}

async function readOne(root: string, name: string): Promise<FolderFile> {
  const handle = await open(path.join(root, name))
  try {
    const { mode } = await handle.stat()
    return { path: name, content: await handle.readFile(), isExecutable: (mode & 0o111) !== 0 }
  } finally {
    await handle.close()
  }
}
