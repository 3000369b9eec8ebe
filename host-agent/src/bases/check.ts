/**
 * A flipped bit in a base would damage every sandbox made from it, without a hint at the cause. So a base is compared
 * with its checksums once per run of the host agent, before anything starts from it. For the bases that are prepared
 * ahead, that is before the first create.
 */
import { readFile, writeFile } from 'node:fs/promises'
import path from 'node:path'
import { type Static, Type } from 'typebox'
import { Value } from 'typebox/value'
import type { Deps } from '../deps.ts'
import type { BaseFiles } from './files.ts'

const Checksums = Type.Object({ bytes: Type.Integer(), crcs: Type.Array(Type.Integer()) })
const BaseChecksums = Type.Object({ image: Checksums, disk: Checksums, ram: Checksums, state: Checksums })
type BaseChecksums = Static<typeof BaseChecksums>

type CheckedBase = { id: string; folder: string; files: BaseFiles }
type CheckDeps = Pick<Deps, 'workers'>

/** By the id of the build. */
const checks = new Map<string, Promise<string | undefined>>()

/** For a base that was just built. */
export async function writeChecksums({ workers }: CheckDeps, base: CheckedBase): Promise<void> {
  const checksums: Partial<BaseChecksums> = {}
  for (const name of namesOf(base.files)) checksums[name] = await workers.run('sealBase', { file: base.files[name] })
  await writeFile(checksumsFile(base), JSON.stringify(checksums))
  checks.set(base.id, Promise.resolve(undefined))
}

/** What is wrong with it; undefined if nothing is. Reads the base only the first time. */
export function findDamage(deps: CheckDeps, base: CheckedBase): Promise<string | undefined> {
  let check = checks.get(base.id)
  if (!check) {
    check = compare(deps, base)
    checks.set(base.id, check)
    // After a read error, the next caller reads again.
    check.catch(() => checks.delete(base.id))
  }
  return check
}

async function compare({ workers }: CheckDeps, base: CheckedBase): Promise<string | undefined> {
  const text = await readFile(checksumsFile(base), 'utf8').catch(ifMissing)
  const checksums = text === undefined ? undefined : parse(text)
  if (!checksums) return undefined // Built before bases had checksums, or the checksums themselves are lost.
  for (const name of namesOf(base.files)) {
    const check = workers.run('checkBase', { file: base.files[name], checksums: checksums[name] })
    const damage = await check.catch((error) => ifMissing(error) ?? 'it is missing')
    if (damage !== undefined) return `its ${name}: ${damage}`
  }
  return undefined
}

const checksumsFile = ({ folder }: CheckedBase): string => path.join(folder, 'sums.json')
const namesOf = (files: BaseFiles) => Object.keys(files) as (keyof BaseFiles)[]

function parse(text: string): BaseChecksums | undefined {
  try {
    const checksums: unknown = JSON.parse(text)
    return Value.Check(BaseChecksums, checksums) ? checksums : undefined
  } catch {
    return undefined
  }
}

function ifMissing(error: NodeJS.ErrnoException): undefined {
  if (error.code !== 'ENOENT') throw error
}
