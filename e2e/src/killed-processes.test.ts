/** Killed with -9, part by part and all at once: what was acknowledged is there, and it goes on or starts again. */
import assert from 'node:assert/strict'
import { readdir } from 'node:fs/promises'
import { after, before, describe, test } from 'node:test'
import { setTimeout as delay } from 'node:timers/promises'
import { until } from '@warren/kit/testing/until'
import pg from 'pg'
import {
  createDataDir,
  fetchPath,
  findInstanceFile,
  getControlPlanePid,
  getDatabaseUrl,
  getPostmasterPid,
  type Instance,
  kill,
  launch,
  listProcesses,
  startInstance,
  stop,
} from './support/instance.ts'

const oneDataDir = await createDataDir({ after })

describe('killed part by part, on one box', () => {
  const dataDir = oneDataDir
  let instance: Instance

  before(async () => {
    instance = await startInstance(dataDir)
  })

  test('the control plane is started again at the same address', async () => {
    const killed = await getControlPlanePid(dataDir)

    kill(killed)

    await until(() => answers(instance), 'it answers again')
    assert.notEqual(await getControlPlanePid(dataDir), killed)
    assert.equal((await findInstanceFile(dataDir))!.baseUrl, instance.baseUrl)
    assert.match(instance.output(), /^the control plane ended \(ended by SIGKILL\), starting it again$/m)
  })

  test('the postmaster is started again, also when one of its children is busy', async () => {
    const busy = await connect(await getDatabaseUrl(dataDir))
    const { rows } = await busy.query<{ pid: number }>('select pg_backend_pid() as pid')
    // It computes and looks at nothing else; PostgreSQL does not start beside it.
    busy.query('select count(*) from generate_series(1, 1e12::bigint) g where g % 7 = 1').catch(() => {})
    const killed = getPostmasterPid(dataDir)
    await until(async () => (await statusOf(dataDir, rows[0]!.pid)) === 'active', 'it computes')

    kill(killed)

    await until(() => instance.output().includes('PostgreSQL ended, starting it again'), 'the launcher noticed')
    await until(() => answers(instance), 'it answers again')
    assert.notEqual(getPostmasterPid(dataDir), killed)
    assert.ok(!listProcesses(dataDir).includes(rows[0]!.pid))
    assert.doesNotMatch(instance.output(), /does not start/)
  })

  test('with the launcher all the others go, and the next start works at once', async () => {
    kill(instance.pid)
    const again = await startInstance(dataDir)

    assert.equal(again.key, instance.key)
    assert.ok(await answers(again))
    assert.ok(!listProcesses(dataDir).includes(instance.pid))
    kill(again.pid)
    await until(() => listProcesses(dataDir).length === 0, 'what it started has ended by itself')
  })
})

test('what was acknowledged is there after everything was killed at once, again and again', async (t) => {
  const dataDir = await createDataDir(t)
  const acknowledged: number[] = []

  for (let round = 1; round <= 3; round++) {
    const instance = await startInstance(dataDir)
    assert.deepEqual(await stored(dataDir, acknowledged), acknowledged)
    const enough = acknowledged.length + 50 + Math.random() * 500
    const writers = [1, 2, 3].map(async () => writeAllTheTime(await getDatabaseUrl(dataDir), acknowledged))
    await until(() => acknowledged.length > enough, 'enough is written')

    for (const pid of [instance.pid, await getControlPlanePid(dataDir), getPostmasterPid(dataDir)]) kill(pid)
    await Promise.all(writers)
  }

  const instance = await startInstance(dataDir)
  assert.deepEqual(await stored(dataDir, acknowledged), acknowledged)
  assert.ok(await answers(instance))
  assert.equal(await stop(instance), 0)
  assert.deepEqual(listProcesses(dataDir), [])
})

const MOMENTS = {
  'while the database is made': async (dataDir: string) =>
    (await readdir(dataDir)).some((name) => name.startsWith('postgres.new-')),
  'while it migrates': async (dataDir: string) => (await tables(dataDir)) > 0,
}

for (const [moment, hasCome] of Object.entries(MOMENTS)) {
  test(`a first start that is killed ${moment} does not spoil the next`, async (t) => {
    const dataDir = await createDataDir(t)
    const run = launch(dataDir)
    await until(() => hasCome(dataDir).catch(() => false), 'the moment has come')

    for (const pid of listProcesses(dataDir)) kill(pid)
    await run.exited

    assert.ok(await answers(await startInstance(dataDir)))
  })
}

test('a start that is killed at any moment does not spoil the next', async (t) => {
  const dataDir = await createDataDir(t)

  // Only the launcher: what it has begun by then is for the next start to find.
  for (let round = 1; round <= 6; round++) {
    const run = launch(dataDir)
    await delay(Math.random() * 2_000) // Not to wait for something: the moment is the test's input.
    kill(run.pid)
    await run.exited
  }

  const instance = await startInstance(dataDir)
  assert.ok(await answers(instance))
  assert.equal(await stop(instance), 0)
  assert.deepEqual(listProcesses(dataDir), [])
})

const answers = async (instance: { baseUrl: string; key: string }): Promise<boolean> =>
  (await fetchPath(instance, '/v1/whoami').catch(() => undefined))?.status === 200

async function connect(url: string): Promise<pg.Client> {
  const client = new pg.Client({ connectionString: url })
  client.on('error', () => {}) // It will be killed.
  await client.connect()
  return client
}

async function ask<Row extends pg.QueryResultRow>(dataDir: string, text: string, values: unknown[] = []) {
  const client = await connect(await getDatabaseUrl(dataDir))
  try {
    return (await client.query<Row>(text, values)).rows
  } finally {
    await client.end()
  }
}

async function statusOf(dataDir: string, pid: number): Promise<string | undefined> {
  const text = "select state from pg_stat_activity where pid = $1 and query like '%generate_series%'"
  const [row] = await ask<{ state: string }>(dataDir, text, [pid])
  return row?.state
}

/** Of the database as the launcher makes it, whose URL nobody publishes before the control plane is ready. */
async function tables(dataDir: string): Promise<number> {
  const client = await connect(`postgresql://postgres@/warren?host=${encodeURIComponent(`${dataDir}/postgres`)}`)
  try {
    const { rows } = await client.query<{ n: number }>(
      "select count(*)::int as n from pg_tables where schemaname = 'public'",
    )
    return rows[0]!.n
  } finally {
    await client.end()
  }
}

/** Writes until the server is gone; each number goes on the list when the server has said that it is stored. */
async function writeAllTheTime(url: string, acknowledged: number[]): Promise<void> {
  const client = await connect(url)
  try {
    await client.query('create table if not exists e2e_writes (n bigint primary key)').catch(() => {})
    for (;;) {
      const n = Math.floor(Math.random() * Number.MAX_SAFE_INTEGER)
      await client.query('insert into e2e_writes values ($1)', [n])
      acknowledged.push(n)
    }
  } catch {
    await client.end().catch(() => {})
  }
}

async function stored(dataDir: string, numbers: number[]): Promise<number[]> {
  if (numbers.length === 0) return []
  const rows = await ask<{ n: string }>(dataDir, 'select n from e2e_writes where n = any($1)', [numbers])
  const found = new Set(rows.map((row) => Number(row.n)))
  return numbers.filter((n) => found.has(n))
}
