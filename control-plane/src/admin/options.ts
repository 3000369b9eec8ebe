/** Options and arguments that several admin commands share. */
import { InvalidArgumentError, Option } from 'commander'
import type { Database } from '../db/connect.ts'
import { PLAN_NAMES } from '../users/plans.ts'

export type Admin = {
  /** Runs an operation on an open database and prints its result. */
  run(operation: (database: Database) => Promise<unknown>): Promise<void>
}

export const planOption = (fallback: string) =>
  new Option('--plan <plan>', 'plan').choices(PLAN_NAMES).default(fallback)

export function parseCredits(text: string): number {
  const credits = Number(text)
  if (!/^-?\d+(\.\d{1,6})?$/.test(text) || Math.abs(credits) > 1e9) {
    throw new InvalidArgumentError('a number of credits, with at most 6 decimals.')
  }
  return credits
}
