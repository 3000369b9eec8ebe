/**
 * A disk that forgets a bit of a base would harm every sandbox that was made from it, and nobody would see why. So a
 * base is read and compared with its sums once in the life of a host agent, before anything is started from it; for
 * those that are kept warm that is before anybody asks.
 */
import { readFile, writeFile } from 'node:fs/promises'
import path from 'node:path'
import type { Deps } from '../deps.ts'
import type { Checksums } from '../snapshots/checksums.ts'
import type { Base } from './base.ts'

type Files = Base['files']
type BaseSums = Record<keyof Files, Checksums>
type Checking = Pick<Deps, 'workers'>

const sumsFile = (base: Pick<Base, 'folder'>): string => path.join(base.folder, 'sums.json')
const namesOf = (files: Files) => Object.keys(files) as (keyof Files)[]
/** By the very build. */
const checks = new Map<string, Promise<string | undefined>>()

/** Of one that was just built. */
export async function sumBase({ workers }: Checking, base: Base): Promise<void> {
  const sums: Partial<BaseSums> = {}
  for (const name of namesOf(base.files)) sums[name] = await workers.run('sealBase', { file: base.files[name] })
  await writeFile(sumsFile(base), JSON.stringify(sums))
  checks.set(base.id, Promise.resolve(undefined))
}

/** What is wrong with it, if anything. */
export function findDamage(deps: Checking, base: Base): Promise<string | undefined> {
  let check = checks.get(base.id)
  if (!check) {
    check = compare(deps, base)
    checks.set(base.id, check)
    // One that could not be read is read again.
    check.catch(() => checks.delete(base.id))
  }
  return check
}

async function compare({ workers }: Checking, base: Base): Promise<string | undefined> {
  const text = await readFile(sumsFile(base), 'utf8').catch(ifMissing)
  const sums = text === undefined ? undefined : parse(text)
  if (!sums) return undefined // Built before bases were summed up, or the sums themselves are lost.
  for (const name of namesOf(base.files)) {
    const check = workers.run('checkBase', { file: base.files[name], checksums: sums[name] })
    const wrong = await check.catch((error) => ifMissing(error) ?? 'it is missing')
    if (wrong !== undefined) return `its ${name}: ${wrong}`
  }
  return undefined
}

function parse(text: string): BaseSums | undefined {
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}

function ifMissing(error: NodeJS.ErrnoException): undefined {
  if (error.code !== 'ENOENT') throw error
}
