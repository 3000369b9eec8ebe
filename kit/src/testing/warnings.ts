/**
 * What the Warrens of a test file log as warnings and errors. `npm test` prints it for the files that fail: a response of
 * the API does not say what went wrong on the host.
 */
import { appendFileSync, existsSync, readFileSync } from 'node:fs'
import path from 'node:path'

/** The folder with a file for each test file. */
export const WARNINGS_VARIABLE = 'WARREN_TEST_WARNINGS'

const WARNING_OR_WORSE = /"level":[456]0\b/

/** Returns a function that receives the output of one Warren, in pieces of any size. Outside of `npm test` it does nothing. */
export function recordWarnings(
  testFile = process.argv[1] ?? '',
  folder = process.env[WARNINGS_VARIABLE],
): (chunk: string) => void {
  if (folder === undefined) return () => {}
  const file = fileFor(folder, testFile)
  let incomplete = ''
  return (chunk) => {
    const lines = `${incomplete}${chunk}`.split('\n')
    incomplete = lines.pop()!
    const warnings = lines.filter((line) => WARNING_OR_WORSE.test(line))
    if (warnings.length > 0) appendFileSync(file, `${warnings.join('\n')}\n`)
  }
}

/** The last ones, oldest first. */
export function readWarnings(folder: string, testFile: string, count: number): string[] {
  const file = fileFor(folder, testFile)
  if (!existsSync(file)) return []
  return readFileSync(file, 'utf8').trimEnd().split('\n').slice(-count)
}

const fileFor = (folder: string, testFile: string): string => path.join(folder, testFile.replaceAll('/', '_'))
