/** A process that a test starts on its database, talks to, and kills. It ends with the test. */
import { type ChildProcess, fork } from 'node:child_process'
import { once } from 'node:events'
import { readFile } from 'node:fs/promises'
import { after } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { sql } from 'kysely'
import type { Deps } from '../deps.ts'

export type TestProcess = {
  child: ChildProcess
  /** Resolves when the process has exited for any reason. */
  ended: Promise<unknown>
  hasEnded(): boolean
  /** Waits for the exit. */
  waitForEnd(what: string, limitMs: number): Promise<void>
  /** Waits for a message, also one that has arrived already. Fails if the process ends before it. */
  receive<Message>(isWanted: (message: Message) => boolean, what: string): Promise<Message>
  kill(): Promise<void>
}

export function startTestProcess(
  { database, db }: Pick<Deps, 'database' | 'db'>,
  file: string,
  env: NodeJS.ProcessEnv = {},
): TestProcess {
  const child = fork(file, {
    // With the test runner's variable the child would behave like a test file.
    env: { ...process.env, NODE_TEST_CONTEXT: undefined, DATABASE_URL: database.url, ...env },
  })
  after(() => child.kill('SIGKILL'))
  const ended = once(child, 'exit')
  const hasEnded = () => child.exitCode !== null || child.signalCode !== null
  const explain = async (error: unknown): Promise<never> => {
    throw new Error(await describeWait(db, child.pid!), { cause: error })
  }
  const messages: unknown[] = []
  child.on('message', (message) => messages.push(message))
  return {
    child,
    ended,
    hasEnded,
    async waitForEnd(what, limitMs) {
      await until(hasEnded, what, limitMs).catch(explain)
    },
    async receive<Message>(isWanted: (message: Message) => boolean, what: string) {
      const find = () => messages.find((message) => isWanted(message as Message)) as Message | undefined
      await until(() => find() !== undefined || hasEnded(), what).catch(explain)
      const found = find()
      if (found === undefined) throw new Error(`the process has ended before ${what}; see its output above`)
      return found
    },
    async kill() {
      child.kill('SIGKILL')
      await ended
    },
  }
}

/** What a process that does not answer waits for: its state in the kernel, and what it does in the database. */
async function describeWait(db: Deps['db'], pid: number): Promise<string> {
  const status = await readFile(`/proc/${pid}/status`, 'utf8').catch(String)
  const { rows } = await sql`select pid, application_name, state, wait_event, left(query, 200) as query
    from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()`.execute(db)
  return `process ${pid} is in state ${/^State:\s*(.*)$/m.exec(status)?.[1] ?? status}; sessions: ${JSON.stringify(rows)}`
}
