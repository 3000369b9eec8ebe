/**
 * A database connection that a test can hold after its first statement and before its second one, to run something else
 * in between.
 */
import { Kysely, PostgresDialect, type PostgresPool } from 'kysely'
import type { Database, Db } from '../db/connect.ts'

type GatePoint = 'after statement 1' | 'before statement 2'
export type Gate = {
  pass(point: GatePoint): Promise<void>
  reached(point: GatePoint): Promise<void>
  release(): void
  fail(): void
}

export function createGate(): Gate {
  const arrivals = {
    'after statement 1': Promise.withResolvers<void>(),
    'before statement 2': Promise.withResolvers<void>(),
  }
  let current = Promise.withResolvers<void>()
  return {
    async pass(point) {
      current = Promise.withResolvers()
      arrivals[point].resolve()
      await current.promise
    },
    reached: (point) => arrivals[point].promise,
    release: () => current.resolve(),
    fail: () => current.reject(new Error('connection lost')),
  }
}

export function createGatedDb(database: Database, gate: Gate): Db {
  let statements = 0
  const connect = async () => {
    const client = await database.pool.connect()
    const query = async (text: string, values: readonly unknown[]) => {
      statements++
      if (statements === 2) await gate.pass('before statement 2')
      const result = await client.query(text, [...values])
      if (statements === 1) await gate.pass('after statement 1')
      return result
    }
    return { query, release: () => client.release() }
  }
  // Kysely uses nothing else of a pool.
  const pool = { connect, end: async () => {} } as unknown as PostgresPool
  return new Kysely({ dialect: new PostgresDialect({ pool }) })
}
