/**
 * `warren admin …`: users, plans, credit and keys, on the database directly, so it also works when no API runs.
 * Running servers hear of every change at once (migration 0001).
 */

import { Failure } from '@warren/kit/failure'
import { createLog } from '@warren/kit/log'
import { errorText } from '@warren/kit/text'
import { Command } from 'commander'
import { connectDatabase } from '../db/connect.ts'
import { addKeyCommands } from './keys.ts'
import type { Admin } from './options.ts'
import { addUserCommands } from './users.ts'

const admin: Admin = {
  async run(verb) {
    const url = process.env.DATABASE_URL
    if (!url) throw new Error('DATABASE_URL is not set; use `npm run warren -- admin …` while Warren runs')
    const database = connectDatabase(url, createLog({ name: 'admin', level: 'error', format: 'json' }), { max: 2 })
    try {
      print(await verb(database), program.opts<{ json?: boolean }>().json ?? false)
    } finally {
      await database.close()
    }
  },
}

const program = new Command('warren admin')
  .description('Manage users, plans, credit and API keys')
  .option('--json', 'print JSON')
  .showHelpAfterError()
addUserCommands(program, admin)
addKeyCommands(program, admin)

try {
  await program.parseAsync()
} catch (error) {
  const text = error instanceof Failure ? Object.values(error.data)[0] : errorText(error)
  process.stderr.write(`warren admin: ${text}\n`)
  process.exitCode = 1
}

function print(result: unknown, json: boolean): void {
  if (json) return void process.stdout.write(`${JSON.stringify(result)}\n`)
  const rows = (Array.isArray(result) ? result : [result]) as Record<string, unknown>[]
  if (rows.length === 0) return void process.stdout.write('none\n')
  process.stdout.write(renderTable(rows))
}

/** Columns as wide as their widest cell. */
function renderTable(rows: Record<string, unknown>[]): string {
  const names = Object.keys(rows[0]!)
  const cell = (value: unknown) => (value instanceof Date ? value.toISOString() : String(value ?? '-'))
  const lines = [names, ...rows.map((row) => names.map((name) => cell(row[name])))]
  const widths = names.map((_, column) => Math.max(...lines.map((line) => line[column]!.length)))
  return lines
    .map(
      (line) =>
        `${line
          .map((text, column) => text.padEnd(widths[column]!))
          .join('  ')
          .trimEnd()}\n`,
    )
    .join('')
}
