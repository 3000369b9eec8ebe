/**
 * A data directory has one Warren at a time.
 *
 * The claim is a socket whose name stands for the directory. The kernel lets one process have it and takes it back
 * when that process ends, however it ends, so two starts at the same moment cannot both win and no crash leaves a
 * lock behind. The instance file only tells people and programs who it is.
 */
import { once } from 'node:events'
import { constants } from 'node:fs'
import { access, mkdir, stat } from 'node:fs/promises'
import { createServer } from 'node:net'
import { setTimeout as delay } from 'node:timers/promises'
import type { Box } from './config.ts'
import { type Instance, isAlive, markOf, type ProcessMark, readInstance, writeInstance } from './instance.ts'

/** A control plane that lost its launcher stops by itself; it has 7 s to do so. */
const LEFTOVER_LIMIT_MS = 8_000

export async function claimDataDir(box: Box): Promise<Instance> {
  try {
    await mkdir(box.dataDir, { recursive: true, mode: 0o700 })
    await access(box.dataDir, constants.R_OK | constants.W_OK | constants.X_OK)
  } catch (error) {
    throw new Error(`cannot use the data directory ${box.dataDir} (WARREN_DATA_DIR chooses another)`, { cause: error })
  }
  await lock(box)
  const found = await readInstance(box)
  for (const child of found?.children ?? []) await endLeftover(child)
  const instance: Instance = { ...markOf(process.pid)!, children: [] }
  await writeInstance(box, instance)
  return instance
}

async function lock(box: Box): Promise<void> {
  const { dev, ino } = await stat(box.dataDir, { bigint: true })
  const server = createServer((socket) => socket.destroy())
  try {
    // The leading NUL makes it a name without a file.
    server.listen({ path: `\0warren-${dev}-${ino}` })
    await once(server, 'listening')
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EADDRINUSE') throw error
    const found = await readInstance(box)
    const who = found && isAlive(found) ? ` (pid ${found.pid}${found.baseUrl ? `, ${found.baseUrl}` : ''})` : ''
    throw new Error(`Warren already runs on ${box.dataDir}${who}`)
  }
  server.unref()
}

async function endLeftover(child: ProcessMark): Promise<void> {
  if (isAlive(child)) process.kill(child.pid, 'SIGTERM')
  for (let waitedMs = 0; isAlive(child) && waitedMs < LEFTOVER_LIMIT_MS; waitedMs += 20) await delay(20)
  if (isAlive(child)) process.kill(child.pid, 'SIGKILL')
}
