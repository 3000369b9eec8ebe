/**
 * Chooses the ids of a data directory's services, when Warren is started by root.
 *
 * The choice is recorded in the data directory, because files there belong to these users. It is made by a hash of the
 * path, so that it rarely clashes with another data directory of the machine, and an abstract socket is held while
 * Warren runs, so that two that run never have the same ids: the second one takes the next block that is free, and its
 * files are handed over to the new users. A block with an account, a container's range or a process is not free. The record names the directory by device and inode. A copy of a data
 * directory therefore chooses anew.
 */
import { createHash } from 'node:crypto'
import { once } from 'node:events'
import { existsSync, readFileSync } from 'node:fs'
import { readFile, stat } from 'node:fs/promises'
import { createServer } from 'node:net'
import path from 'node:path'
import { Type } from 'typebox'
import { Value } from 'typebox/value'
import { readConfig } from '../config.ts'
import { writeFileDurably } from '../files.ts'
import { SERVICE_UID } from '../shared-settings.ts'
import { type Account, type AccountFiles, checkMapped, countUsable, findAccount } from './check-ids.ts'
import { listProcesses } from './hand-over.ts'
import { IDS_PER_DATA_DIR } from './services.ts'

const RECORD = 'service-ids.json'
const Record = Type.Object({ version: Type.Literal(1), first: Type.Integer(), directory: Type.String() })
/** More data directories than a machine has. */
const BLOCKS_MAX = 65_536

const claimed = new Map<string, Promise<number>>()

/** Returns the first id, or undefined for an ordinary user, whose services have that user's id. Holds it until the exit. */
export async function claimServiceIds(dataDir: string): Promise<number | undefined> {
  if (process.getuid?.() !== 0) return undefined
  const key = path.resolve(dataDir)
  const known = claimed.get(key)
  if (known) return known
  const claiming = claim(key)
  claimed.set(key, claiming)
  claiming.catch(() => claimed.delete(key))
  return claiming
}

async function claim(dataDir: string): Promise<number> {
  const { start } = readConfig({ start: SERVICE_UID }, process.env)
  const maps = readIdMaps()
  checkMapped(start, maps)
  const blocks = Math.min(BLOCKS_MAX, Math.floor(countUsable(start, maps) / IDS_PER_DATA_DIR))
  const { dev, ino } = await stat(dataDir, { bigint: true })
  const directory = `${dev}:${ino}`
  const recorded = await readRecord(dataDir, directory)
  const isInRange = recorded !== undefined && recorded >= start && recorded < start + blocks * IDS_PER_DATA_DIR
  const accounts = readAccounts()
  const isFree = (first: number) => findAccount(first, accounts) === undefined
  if (isInRange && isFree(recorded) && (await tryLock(recorded))) return recorded
  const preferred = createHash('sha256').update(dataDir).digest().readUInt32BE() % blocks
  for (let tried = 0; tried < blocks; tried++) {
    const first = start + ((preferred + tried) % blocks) * IDS_PER_DATA_DIR
    // Processes of these users are killed. Those that run now are not ours, or end with their launcher.
    if (!isFree(first) || listProcesses(first, IDS_PER_DATA_DIR).length > 0) continue
    if (!(await tryLock(first))) continue
    await writeFileDurably(path.join(dataDir, RECORD), `${JSON.stringify({ version: 1, first, directory })}\n`)
    return first
  }
  throw new Error(
    `all user ids from ${start} on are in use: by other instances, by running processes, or by accounts` +
      `${renderAccount(findAccount(start, accounts))}; set WARREN_SERVICE_UID`,
  )
}

const renderAccount = (account: Account | undefined): string =>
  account ? ` (${account.file} gives ${account.id} to ${account.name})` : ''

const readAccounts = (): AccountFiles => {
  const read = (file: string) => readFileSync(file, 'utf8')
  const readOptional = (file: string) => (existsSync(file) ? read(file) : '')
  return {
    passwd: read('/etc/passwd'),
    group: read('/etc/group'),
    subuid: readOptional('/etc/subuid'),
    subgid: readOptional('/etc/subgid'),
  }
}

const readIdMaps = () => ({
  uid: readFileSync('/proc/self/uid_map', 'utf8'),
  gid: readFileSync('/proc/self/gid_map', 'utf8'),
})

async function readRecord(dataDir: string, directory: string): Promise<number | undefined> {
  const text = await readFile(path.join(dataDir, RECORD), 'utf8').catch(() => '')
  try {
    const record: unknown = JSON.parse(text)
    return Value.Check(Record, record) && record.directory === directory ? record.first : undefined
  } catch {
    return undefined // Absent or not ours: the ids are chosen anew, and the files are handed over.
  }
}

/** The kernel gives the name to one process and frees it when that process ends. */
async function tryLock(first: number): Promise<boolean> {
  const server = createServer((socket) => socket.destroy())
  try {
    server.listen({ path: `\0warren-service-ids-${first}` })
    await once(server, 'listening')
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'EADDRINUSE') return false
    throw error
  }
  server.unref()
  return true
}
