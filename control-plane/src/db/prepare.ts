/**
 * A client of PostgreSQL that prepares the statements it sends often (docs/decisions/0059-prepared-statements.md).
 *
 * A statement with parameters gets a name when this process has sent its text for the tenth time. `pg` then lets the server
 * parse it once per connection. Two kinds of statements stay without a name: rare ones, and those whose text depends on the
 * number of values, of which there may be many. The server keeps the plan of each name in the memory of each connection,
 * so the number of names is bounded too.
 */
import pg from 'pg'

const PREPARE_AT = 10
const MAX_NAMES = 200
/** Texts that are counted. When there are more, counting starts again. */
const MAX_COUNTED = 1_000

export type StatementNames = {
  /** The name with which to send this text; undefined if it is not prepared. */
  find(text: string): string | undefined
  /** Gives new names to all statements: what is prepared under the old ones does not fit the tables any more. */
  renew(): void
}

export function createStatementNames(): StatementNames {
  const names = new Map<string, string>()
  const counts = new Map<string, number>()
  let generation = 1
  return {
    find(text) {
      const name = names.get(text)
      if (name !== undefined || names.size >= MAX_NAMES) return name
      const count = (counts.get(text) ?? 0) + 1
      if (count < PREPARE_AT) {
        if (counts.size >= MAX_COUNTED) counts.clear()
        counts.set(text, count)
        return undefined
      }
      counts.delete(text)
      const given = `often-${generation}-${names.size + 1}`
      names.set(text, given)
      return given
    },
    renew() {
      generation++
      names.clear()
    },
  }
}

/** The class of clients for a pool. All of them use the same names. */
export function preparingClient(names: StatementNames = createStatementNames()): typeof pg.Client {
  class PreparingClient extends pg.Client {
    // biome-ignore lint/suspicious/noExplicitAny: `query` of pg has twelve overloads. Only one of them is changed here.
    override query(config: any, values?: any, callback?: any): any {
      const hasParameters = typeof config === 'string' && Array.isArray(values) && values.length > 0
      const name = hasParameters ? names.find(config) : undefined
      if (name === undefined) return super.query(config, values, callback)
      const named = { name, text: config, values }
      const renewIfStale = (error: unknown) => {
        if (isStalePlan(error)) names.renew()
      }
      if (callback !== undefined) {
        return super.query(named, (error: Error, result: pg.QueryResult) => {
          renewIfStale(error)
          callback(error, result)
        })
      }
      return super.query(named).catch((error) => {
        renewIfStale(error)
        throw error
      })
    }
  }
  return PreparingClient
}

/**
 * The columns of a table have changed since the statement was prepared, by a migration for example, or the server does not know
 * the name any more. The message is not compared: servers translate it.
 */
const isStalePlan = (error: unknown): boolean =>
  error instanceof pg.DatabaseError &&
  ((error.code === '0A000' && error.routine === 'RevalidateCachedQuery') || error.code === '26000')
