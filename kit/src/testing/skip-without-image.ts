/**
 * For images that take minutes to build. `npm test` builds them while other tests run: this waits for it and fails if the
 * build failed. Without it, tests use an image only where it exists already. Returns the reason to skip.
 */
import { existsSync, readFileSync } from 'node:fs'
import { homedir } from 'node:os'
import path from 'node:path'
import { until } from './until.ts'

/** Building an image downloads hundreds of packages. */
const IMAGE_LIMIT_MS = 30 * 60_000

export async function skipWithoutImage(name: string): Promise<string | false> {
  const outcome = process.env.WARREN_TEST_DEVBOX
  if (outcome !== undefined) {
    await until(() => existsSync(outcome), `${name} is built`, IMAGE_LIMIT_MS)
    const text = readFileSync(outcome, 'utf8')
    if (text !== 'ready') throw new Error(text)
    return false
  }
  const cache = process.env.XDG_CACHE_HOME || path.join(homedir(), '.cache')
  return existsSync(path.join(cache, 'warren/images/names', name)) ? false : `${name} is not built on this machine`
}
