/**
 * Chooses the name of a sandbox, which is unique among the user's sandboxes that have not ended. The caller has locked
 * the user's row, so the name is still free when the sandbox is inserted.
 */
import { randomInt } from 'node:crypto'
import { failure } from '@warren/kit/failure'
import type { Tx } from '../db/connect.ts'
import { HAS_NOT_ENDED } from './has-not-ended.ts'
import { ADJECTIVES, ANIMALS } from './name-words.ts'

/** Candidates checked in one query. With a thousand sandboxes, all are taken with a probability of 10^-16. */
const CANDIDATES = 8

export async function chooseName(tx: Tx, userId: string, wanted: string | undefined): Promise<string> {
  if (wanted !== undefined) {
    const taken = await findTaken(tx, userId, [wanted])
    if (taken.size > 0) throw failure('name_in_use', `sandbox name ${wanted} is already in use`)
    return wanted
  }
  const plain = await findFree(tx, userId, () => generateName())
  return plain ?? (await findFree(tx, userId, () => `${generateName()}-${randomInt(1_000_000)}`)) ?? failNoName()
}

export const generateName = (): string => `${pick(ADJECTIVES)}-${pick(ANIMALS)}`

async function findFree(tx: Tx, userId: string, generate: () => string): Promise<string | undefined> {
  const names = Array.from({ length: CANDIDATES }, generate)
  const taken = await findTaken(tx, userId, names)
  return names.find((name) => !taken.has(name))
}

async function findTaken(tx: Tx, userId: string, names: string[]): Promise<Set<string>> {
  const rows = await tx
    .selectFrom('sandboxes')
    .select('name')
    .where('user_id', '=', userId)
    .where('name', 'in', names)
    .where(HAS_NOT_ENDED)
    .execute()
  return new Set(rows.map((row) => row.name))
}

const pick = (words: readonly string[]): string => words[randomInt(words.length)]!

function failNoName(): never {
  throw new Error('failed to generate a free sandbox name')
}
