/**
 * The image devbox:1, which takes minutes to build. It is built while the first tests run, once per recipe: the cache
 * remembers from which recipe the image was made. The files of the recipe are those that decide its content.
 */
import { spawn } from 'node:child_process'
import { createHash } from 'node:crypto'
import { existsSync, mkdirSync, readFileSync, renameSync, writeFileSync } from 'node:fs'
import path from 'node:path'

export const DEVBOX = 'devbox:1'
/** Names the file in which the outcome is written: `ready`, or the reason of a failure. e2e/src/support reads it. */
export const DEVBOX_VARIABLE = 'WARREN_TEST_DEVBOX'

const RECIPE = ['debian.ts', 'devbox.ts', 'npm-package.ts', 'run-in-root.ts']
const OUTPUT_SHOWN = 2_000

export function buildDevbox(root: string, cacheDir: string, outcomeFile: string): { stop(): void } {
  const stamp = path.join(cacheDir, 'test-tools/devbox-recipe')
  const recipe = digestRecipe(root)
  const end = (outcome: string) => {
    writeFileSync(`${outcomeFile}.new`, outcome)
    renameSync(`${outcomeFile}.new`, outcomeFile) // Readers see it whole.
  }
  const isBuilt = existsSync(path.join(cacheDir, 'images/names', DEVBOX))
  if (isBuilt && existsSync(stamp) && readFileSync(stamp, 'utf8') === recipe) {
    end('ready')
    return { stop: () => {} }
  }
  const startedAt = performance.now()
  const program = path.join(root, 'host-agent/src/images/main.ts')
  // Nice: the tests that run meanwhile have time limits.
  const child = spawn('nice', ['-n', '10', process.execPath, program, 'build', DEVBOX], { cwd: root })
  let output = ''
  for (const stream of [child.stdout, child.stderr]) {
    stream.setEncoding('utf8').on('data', (chunk) => {
      output = (output + chunk).slice(-OUTPUT_SHOWN)
    })
  }
  child.once('error', (error) => end(`failed to build ${DEVBOX}: ${error.message}`))
  child.once('close', (code) => {
    const seconds = ((performance.now() - startedAt) / 1000).toFixed(0)
    if (code !== 0) return end(`failed to build ${DEVBOX} after ${seconds} s:\n${output}`)
    mkdirSync(path.dirname(stamp), { recursive: true })
    writeFileSync(stamp, recipe)
    process.stdout.write(`${DEVBOX}: built (${seconds} s)\n`)
    end('ready')
  })
  return { stop: () => void child.kill('SIGTERM') }
}

function digestRecipe(root: string): string {
  const hash = createHash('sha256')
  for (const file of RECIPE) hash.update(readFileSync(path.join(root, 'host-agent/src/images', file)))
  return hash.digest('hex')
}
