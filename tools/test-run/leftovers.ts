/**
 * What a test run leaves on the machine. A run has a folder in the temporary directory in which all of its tests work, and
 * a file in it with the instances that they started. What belongs to these is in kit/src/testing/leftovers.ts.
 */
import {
  chmodSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { listLeftovers } from '@warren/kit/testing/leftovers'

/** Short, because sockets are made below it. */
const PREFIX = 'warren-t-'
const OWNER_FILE = 'runner.json'
const LEDGER_FILE = 'instances'
const WARNINGS_FOLDER = 'warnings'

export type TestRun = { folder: string; ledger: string }

/** A process that was killed needs a moment until it is gone. */
const EXIT_LIMIT_MS = 10_000

/** See kit/src/testing/warnings.ts. */
export const warningsFolderOf = ({ folder }: Pick<TestRun, 'folder'>): string => path.join(folder, WARNINGS_FOLDER)

export function startTestRun(): TestRun {
  const folder = mkdtempSync(path.join(tmpdir(), PREFIX))
  chmodSync(folder, 0o755) // Some tests run programs as another user.
  writeFileSync(path.join(folder, OWNER_FILE), JSON.stringify(identify(process.pid)))
  const ledger = path.join(folder, LEDGER_FILE)
  writeFileSync(ledger, '')
  mkdirSync(warningsFolderOf({ folder }))
  return { folder, ledger }
}

/** Runs whose runner was killed. A run without a record of its runner is that of a runner that starts right now. */
export function findDeadRuns(root = tmpdir()): TestRun[] {
  return readdirSync(root)
    .filter((name) => name.startsWith(PREFIX))
    .map((name) => ({ folder: path.join(root, name), ledger: path.join(root, name, LEDGER_FILE) }))
    .filter(({ folder }) => {
      const file = path.join(folder, OWNER_FILE)
      if (!existsSync(file)) return false
      const owner = JSON.parse(readFileSync(file, 'utf8')) as Identity
      return identify(owner.pid)?.startedAt !== owner.startedAt
    })
}

/** Removes everything of a run, and returns what it was besides the folder of the run. */
export async function removeTestRun(run: TestRun): Promise<string[]> {
  const owner = { folder: run.folder, instances: readLedger(run) }
  const names = new Set<string>()
  for (const deadline = Date.now() + EXIT_LIMIT_MS; ; await delay(100)) {
    const found = listLeftovers(owner)
    const processes = found.filter(({ kind }) => kind === 'process')
    // The rest can be removed only after the processes that use it.
    for (const leftover of processes.length > 0 ? processes : found) {
      names.add(`${leftover.kind} ${leftover.name}`)
      leftover.remove()
    }
    if (found.length === 0 || Date.now() > deadline) break
  }
  rmSync(run.folder, { recursive: true, force: true })
  return [...names]
}

function readLedger({ ledger }: TestRun): string[] {
  if (!existsSync(ledger)) return []
  return [...new Set(readFileSync(ledger, 'utf8').split('\n'))].filter((line) => /^[0-9a-f]{8}$/.test(line))
}

type Identity = { pid: number; startedAt: string }

/** Pids are reused; a pid with its start time is not. */
function identify(pid: number): Identity | undefined {
  const file = `/proc/${pid}/stat`
  if (!existsSync(file)) return undefined
  const stat = readFileSync(file, 'utf8')
  // The command in parentheses may contain spaces. Start time is field 22.
  const startedAt = stat.slice(stat.lastIndexOf(')') + 2).split(' ')[19]
  return startedAt === undefined ? undefined : { pid, startedAt }
}
