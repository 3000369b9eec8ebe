/** Connects to the database, runs one action of a command on it, and prints the result. */

import { createLog } from '@warren/kit/log'
import { type Column, renderTable } from '@warren/kit/table'
import { warrenCommand } from '@warren/kit/warren-command'
import { type AdminCommand, recordCommand } from '../audit/record-command.ts'
import { connectDatabase, type Database } from '../db/connect.ts'

export type RunOnDatabase = (action: (database: Database) => Promise<unknown>) => Promise<void>

/** The functions are called after the command line has been parsed. Commands that change something are recorded. */
export function createRunOnDatabase(isJson: () => boolean, currentCommand: () => AdminCommand): RunOnDatabase {
  return async (action) => {
    const url = process.env.DATABASE_URL
    if (!url) throw new Error(`DATABASE_URL is not set; use ${warrenCommand()} admin while Warren runs`)
    const database = connectDatabase(url, createLog({ name: 'admin', level: 'error', format: 'json' }), { max: 2 })
    try {
      const result = await action(database).catch(async (error) => {
        await recordCommand(database.db, currentCommand(), error).catch(() => {}) // The first error is the one to report.
        throw error
      })
      await recordCommand(database.db, currentCommand())
      printResult(result, isJson())
    } finally {
      await database.close()
    }
  }
}

export function printResult(result: unknown, isJson: boolean): void {
  process.stdout.write(isJson ? `${JSON.stringify(result)}\n` : renderResult(result))
}

/** The result is one row or an array of rows; the first row has the columns. */
function renderResult(result: unknown): string {
  const rows = (Array.isArray(result) ? result : [result]) as Record<string, unknown>[]
  if (rows.length === 0) return 'none\n'
  const columns = Object.keys(rows[0]!).map(
    (name): Column<Record<string, unknown>> => ({ title: name, cell: (row) => renderValue(row[name]) }),
  )
  return renderTable(columns, rows)
}

const renderValue = (value: unknown): string => (value instanceof Date ? value.toISOString() : String(value ?? '-'))
