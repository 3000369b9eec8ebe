/** Applies the migrations of the gateway and exits, as control-plane/src/db/main.ts does. Reads DATABASE_URL only. */
import { readConfig } from '@warren/kit/config'
import { errorText } from '@warren/kit/error-text'
import { createLog, logFormat } from '@warren/kit/log'
import { DATABASE_URL, LOGGING } from '@warren/kit/shared-settings'
import { connectDatabase } from './connect.ts'
import { migrate } from './migrate.ts'

const config = readConfig({ databaseUrl: DATABASE_URL, ...LOGGING }, process.env)
const log = createLog({ name: 'migrations', level: config.logLevel, format: logFormat(config.logFormat, false) })
const database = connectDatabase(config.databaseUrl, log, { max: 4, queryLimitMs: 0 })
try {
  await migrate(database)
} catch (error) {
  process.stderr.write(`${errorText(error)}\n`)
  process.exitCode = 1
} finally {
  await database.close()
}
