/**
 * Makes sure that only one Warren runs on a data directory, and on the folder of its database (WARREN_DATABASE_DIR).
 *
 * A lock is an abstract Unix socket whose name is made from the directory's device and inode. The kernel gives it to
 * one process and frees it when that process ends, for whatever reason. So of two simultaneous starts one wins, and a
 * crash leaves no lock behind. The instance file is only information for people and other commands.
 */
import { once } from 'node:events'
import { constants } from 'node:fs'
import { access, mkdir, stat } from 'node:fs/promises'
import { createServer } from 'node:net'
import { setTimeout as delay } from 'node:timers/promises'
import { releaseReserve } from '@warren/kit/postgres/reserve-file'
import type { InstanceConfig } from './config.ts'
import { checkDatabaseFolder } from './database-record.ts'
import {
  findProcess,
  type Instance,
  isAlive,
  type ProcessIdentity,
  readInstanceFile,
  writeInstanceFile,
} from './instance-file.ts'
import { printError } from './output.ts'

/** A service that loses its launcher stops automatically, in a few seconds unless the machine is very slow. */
const ORPHAN_LIMIT_MS = 8_000

/** Also stops the services that a killed predecessor left running. Returns the new content of the instance file. */
export async function lockDataDir(config: InstanceConfig): Promise<Instance> {
  const { dataDir } = config
  try {
    await mkdir(dataDir, { recursive: true, mode: 0o700 })
    await access(dataDir, constants.R_OK | constants.W_OK | constants.X_OK)
  } catch (error) {
    throw new Error(`cannot use the data directory ${dataDir} (set WARREN_DATA_DIR to choose another)`, {
      cause: error,
    })
  }
  await acquireLock(dataDir, () => describeHolder(config))
  if (config.databaseUrl === undefined) {
    await lockDatabaseDir(config)
    await releaseReserve(config.databaseDir, (text) => printError('', new Error(text)))
  }
  const previous = await readInstanceFile(config)
  for (const child of previous?.children ?? []) await stopOrphan(child)
  const self = findProcess(process.pid)! // This process is running.
  const instance: Instance = { ...self, children: [] }
  await writeInstanceFile(config, instance)
  return instance
}

/** A start stops the PostgreSQL that it finds there, which must not be that of another Warren. */
async function lockDatabaseDir(config: InstanceConfig): Promise<void> {
  const { dataDir, databaseDir } = config
  checkDatabaseFolder(config)
  await mkdir(databaseDir, { recursive: true, mode: 0o700 })
  if ((await lockName(databaseDir)) === (await lockName(dataDir))) return
  const advice = async () => ', with another data directory; each needs a separate WARREN_DATABASE_DIR'
  await acquireLock(databaseDir, advice)
}

async function lockName(folder: string): Promise<string> {
  const { dev, ino } = await stat(folder, { bigint: true })
  // The leading NUL makes it an abstract socket, which has no file.
  return `\0warren-${dev}-${ino}`
}

async function acquireLock(folder: string, describe: () => Promise<string>): Promise<void> {
  const server = createServer((socket) => socket.destroy())
  try {
    server.listen({ path: await lockName(folder) })
    await once(server, 'listening')
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EADDRINUSE') throw error
    throw new Error(`Warren already runs on ${folder}${await describe()}`)
  }
  server.unref()
}

async function describeHolder(config: InstanceConfig): Promise<string> {
  const found = await readInstanceFile(config)
  return found && isAlive(found) ? ` (pid ${found.pid}${found.baseUrl ? `, ${found.baseUrl}` : ''})` : ''
}

async function stopOrphan(child: ProcessIdentity): Promise<void> {
  if (isAlive(child)) process.kill(child.pid, 'SIGTERM')
  for (let waitedMs = 0; isAlive(child) && waitedMs < ORPHAN_LIMIT_MS; waitedMs += 20) await delay(20)
  if (isAlive(child)) process.kill(child.pid, 'SIGKILL')
}
