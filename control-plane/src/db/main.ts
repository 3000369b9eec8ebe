/**
 * Applies the migrations and exits. `warren start` runs it with the role that owns the schema, before the control plane
 * starts with one that does not. Like the control plane it first makes sure that the secrets key is the right one.
 */
import { readConfig } from '@warren/kit/config'
import { errorText } from '@warren/kit/error-text'
import { createLog, logFormat } from '@warren/kit/log'
import { SETTINGS } from '../config.ts'
import { keySourceOf } from '../secrets/key-source.ts'
import { checkKeys } from '../secrets/start.ts'
import { connectDatabase } from './connect.ts'
import { migrate } from './migrate.ts'

// Other settings are not read here: the control plane reports those that are invalid.
const { databaseUrl, secretsKey, secretsKeyFile, logLevel, logFormat: format } = SETTINGS
const config = readConfig({ databaseUrl, secretsKey, secretsKeyFile, logLevel, logFormat: format }, process.env)
const log = createLog({ name: 'migrations', level: config.logLevel, format: logFormat(config.logFormat, false) })
const database = connectDatabase(config.databaseUrl, log, { max: 4, queryLimitMs: 0 })
try {
  await checkKeys(database, keySourceOf(config))
  await migrate(database)
} catch (error) {
  process.stderr.write(`${errorText(error)}\n`)
  process.exitCode = 1
} finally {
  await database.close()
}
