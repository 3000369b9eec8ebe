/**
 * The record in the data directory of where its database is, and which one it is.
 *
 * A start that does not find its database must not create an empty one: for an empty database no sandbox exists, so all of
 * them would be deleted. A variable that is missing in another shell, a volume that is not mounted and an incomplete
 * back-up are enough for that. So the record is written once the database exists, and later starts use that database or
 * fail. Data directories of earlier versions have no record; theirs is written at the next start.
 */
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import path from 'node:path'
import { writeFileDurably } from '@warren/kit/files'
import type { InstanceConfig } from './config.ts'

type Config = Pick<InstanceConfig, 'dataDir' | 'databaseDir'>
type DatabaseRecord = {
  version: 1
  /** Relative to the data directory if it is inside, so that a restored back-up can be anywhere. */
  folder: string
  /** What PostgreSQL gave the database when it was created, in decimal. */
  systemIdentifier: string
}

/** Where the host agent has the records and saved states of sandboxes. */
const SANDBOX_FOLDERS = ['vms', 'snapshots']
const IDENTIFIER_BYTES = 8

export const postgresDir = ({ databaseDir }: Pick<Config, 'databaseDir'>): string => path.join(databaseDir, 'postgres')

const recordFile = ({ dataDir }: Config): string => path.join(dataDir, 'database.json')

/** Throws unless the database is that of the data directory, or the data directory is new. Creates nothing. */
export function checkDatabaseFolder(config: Config): void {
  const folder = postgresDir(config)
  const found = findSystemIdentifier(folder)
  const record = readRecord(config)
  if (!record) {
    checkWithoutRecord(config, folder, found)
    return
  }
  const recorded = path.resolve(config.dataDir, record.folder)
  if (found === undefined) throw new Error(explainMissing(config, recorded, folder))
  if (found !== record.systemIdentifier) {
    throw new Error(
      `${folder} is another database than that of ${config.dataDir}, which was in ${recorded}; ` +
        'set WARREN_DATABASE_DIR to the folder that contains the right one',
    )
  }
  if (recorded !== folder && findSystemIdentifier(recorded) === found) {
    throw new Error(
      `${recorded}, which was used last, and ${folder} are copies of one database; rename the one that is out of date, ` +
        `or delete ${recordFile(config)} if ${recorded} belongs to another data directory`,
    )
  }
}

/** Once the database exists. */
export async function recordDatabase(config: Config): Promise<void> {
  const folder = postgresDir(config)
  const relative = path.relative(config.dataDir, folder)
  const systemIdentifier = findSystemIdentifier(folder)
  if (systemIdentifier === undefined) throw new Error(`${folder} has no database`)
  const record: DatabaseRecord = {
    version: 1,
    folder: relative === '..' || relative.startsWith('../') ? folder : relative,
    systemIdentifier,
  }
  const previous = readRecord(config)
  if (previous?.folder === record.folder && previous.systemIdentifier === systemIdentifier) return
  await writeFileDurably(recordFile(config), `${JSON.stringify(record, null, 2)}\n`)
}

function explainMissing({ dataDir, databaseDir }: Config, recorded: string, folder: string): string {
  if (recorded === folder) {
    return `the database is not in ${folder}, where it was; mount its volume, or restore it from the back-up`
  }
  if (findSystemIdentifier(recorded) === undefined) {
    return `the database was in ${recorded}, and is neither there nor in ${folder}; mount its volume, or restore it from the back-up`
  }
  const setting = databaseDir === dataDir ? 'not set' : databaseDir
  return (
    `the database is in ${recorded}, and WARREN_DATABASE_DIR is ${setting}; ` +
    `set it to ${path.dirname(recorded)}, or move the folder to ${databaseDir}`
  )
}

function checkWithoutRecord(config: Config, folder: string, found: string | undefined): void {
  const usual = path.join(config.dataDir, 'postgres')
  const before = usual === folder ? undefined : findSystemIdentifier(usual)
  if (before !== undefined && found === undefined) throw new Error(explainMissing(config, usual, folder))
  if (before !== undefined) {
    throw new Error(`there is a database in ${usual} and another one in ${folder}; rename the one that is not used`)
  }
  if (found !== undefined) return
  const used = SANDBOX_FOLDERS.map((name) => path.join(config.dataDir, name)).find(hasFiles)
  if (used === undefined) return
  throw new Error(
    `there is no database in ${folder}, and ${used} has sandboxes, which an empty database would delete; ` +
      'set WARREN_DATABASE_DIR or DATABASE_URL as before, mount the volume of the database, or restore it from the back-up',
  )
}

function readRecord(config: Config): DatabaseRecord | undefined {
  const file = recordFile(config)
  if (!existsSync(file)) return undefined
  try {
    const record = JSON.parse(readFileSync(file, 'utf8')) as Partial<DatabaseRecord> | null
    if (record?.version !== 1) throw new Error('it was written by another version')
    const { folder, systemIdentifier } = record
    if (typeof folder !== 'string' || typeof systemIdentifier !== 'string') throw new Error('it is not complete')
    return { version: 1, folder, systemIdentifier }
  } catch (error) {
    throw new Error(`failed to read ${file}`, { cause: error })
  }
}

/** It is the beginning of this file in every version of PostgreSQL. */
function findSystemIdentifier(folder: string): string | undefined {
  if (!existsSync(path.join(folder, 'PG_VERSION'))) return undefined
  const control = readFileSync(path.join(folder, 'global', 'pg_control'))
  if (control.length < IDENTIFIER_BYTES) throw new Error(`${path.join(folder, 'global', 'pg_control')} is damaged`)
  return `${control.readBigUInt64LE()}`
}

const hasFiles = (folder: string): boolean =>
  existsSync(folder) &&
  readdirSync(folder, { recursive: true, withFileTypes: true }).some((entry) => !entry.isDirectory())
