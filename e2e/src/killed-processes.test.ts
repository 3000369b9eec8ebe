/** Processes killed with SIGKILL, one by one and all at once: acknowledged data survives, and Warren recovers. */
import assert from 'node:assert/strict'
import { readdir } from 'node:fs/promises'
import { after, before, describe, test } from 'node:test'
import { passTime } from '@warren/kit/testing/pass-time'
import { until } from '@warren/kit/testing/until'
import pg from 'pg'
import {
  createDataDir,
  fetchPath,
  findInJail,
  findInstanceFile,
  getControlPlanePid,
  getDatabaseSocketFolder,
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

describe('when one process is killed', () => {
  const dataDir = oneDataDir
  let instance: Instance

  before(async () => {
    instance = await startInstance(dataDir)
  })

  test('the control plane is started again at the same address', async () => {
    const killed = await getControlPlanePid(dataDir)

    kill(killed)

    await until(() => isServing(instance), 'it serves again')
    assert.notEqual(await getControlPlanePid(dataDir), killed)
    assert.equal((await findInstanceFile(dataDir))!.baseUrl, instance.baseUrl)
    assert.match(instance.output(), /^the control plane ended \(ended by SIGKILL\), starting it again$/m)
  })

  test('PostgreSQL is started again, also while one of its backends is busy', async () => {
    const busy = await connect(await getDatabaseUrl(dataDir))
    const { rows } = await busy.query<{ pid: number }>('select pg_backend_pid() as pid')
    // A computing backend does not notice that the postmaster is gone, and PostgreSQL does not start beside it.
    busy.query('select count(*) from generate_series(1, 1e12::bigint) g where g % 7 = 1').catch(() => {})
    const killed = getPostmasterPid(dataDir)
    const backend = findInJail(dataDir, rows[0]!.pid)!
    assert.ok(backend > 0)
    await until(async () => (await statusOf(dataDir, rows[0]!.pid)) === 'active', 'the backend is busy')

    kill(killed)

    await until(() => instance.output().includes('PostgreSQL ended, starting it again'), 'the launcher has noticed')
    await until(() => isServing(instance), 'it serves again')
    assert.notEqual(getPostmasterPid(dataDir), killed)
    assert.ok(!listProcesses(dataDir).includes(backend))
    assert.doesNotMatch(instance.output(), /failed to restart/)
  })

  test('when the launcher is killed the others exit, and the next start works at once', async () => {
    kill(instance.pid)
    const again = await startInstance(dataDir)

    assert.equal(again.key, instance.key)
    assert.ok(await isServing(again))
    assert.ok(!listProcesses(dataDir).includes(instance.pid))
    kill(again.pid)
    await until(() => listProcesses(dataDir).length === 0, 'all processes that it started have exited')
  })
})

test('acknowledged writes survive when everything is killed at once, repeatedly', async (t) => {
  const dataDir = await createDataDir(t)
  const acknowledged: number[] = []

  for (let round = 1; round <= 3; round++) {
    const instance = await startInstance(dataDir)
    assert.deepEqual(await listStored(dataDir, acknowledged), acknowledged)
    const target = acknowledged.length + 50 + Math.random() * 500
    const url = await getDatabaseUrl(dataDir)
    // Connected before anything is killed: a connect that is cut off would fail the test.
    const clients = await Promise.all([1, 2, 3].map(() => connect(url)))
    const writers = clients.map((client) => writeContinuously(client, acknowledged))
    await until(() => acknowledged.length > target, 'enough rows are written')

    for (const pid of [instance.pid, await getControlPlanePid(dataDir), getPostmasterPid(dataDir)]) kill(pid)
    await Promise.all(writers)
  }

  const instance = await startInstance(dataDir)
  assert.deepEqual(await listStored(dataDir, acknowledged), acknowledged)
  assert.ok(await isServing(instance))
  assert.equal(await stop(instance), 0)
  assert.deepEqual(listProcesses(dataDir), [])
})

const MOMENTS = {
  'while the database is created': async (dataDir: string) =>
    (await readdir(dataDir)).some((name) => name.startsWith('postgres.new-')),
  'while it migrates': async (dataDir: string) => (await countTables(dataDir)) > 0,
}

for (const [moment, isReached] of Object.entries(MOMENTS)) {
  test(`after a first start is killed ${moment}, the next start works`, async (t) => {
    const dataDir = await createDataDir(t)
    const launched = launch(dataDir)
    await until(() => isReached(dataDir).catch(() => false), 'the moment is reached')

    for (const pid of listProcesses(dataDir)) kill(pid)
    await launched.exited

    assert.ok(await isServing(await startInstance(dataDir)))
  })
}

test('after a start is killed at any moment, the next start works', async (t) => {
  const dataDir = await createDataDir(t)

  // Only the launcher is killed: the next start must deal with the processes that it had started.
  for (let round = 1; round <= 6; round++) {
    const launched = launch(dataDir)
    await passTime(Math.random() * 2_000, 'the moment is the input of the test')
    kill(launched.pid)
    await launched.exited
  }

  const instance = await startInstance(dataDir)
  assert.ok(await isServing(instance))
  assert.equal(await stop(instance), 0)
  assert.deepEqual(listProcesses(dataDir), [])
})

const isServing = async (instance: { baseUrl: string; key: string }): Promise<boolean> =>
  (await fetchPath(instance, '/v1/whoami').catch(() => undefined))?.status === 200

async function connect(url: string): Promise<pg.Client> {
  const client = new pg.Client({ connectionString: url })
  client.on('error', () => {}) // The server will be killed.
  await client.connect()
  return client
}

async function query<Row extends pg.QueryResultRow>(dataDir: string, text: string, values: unknown[] = []) {
  const client = await connect(await getDatabaseUrl(dataDir))
  try {
    return (await client.query<Row>(text, values)).rows
  } finally {
    await client.end()
  }
}

async function statusOf(dataDir: string, pid: number): Promise<string | undefined> {
  const text = "select state from pg_stat_activity where pid = $1 and query like '%generate_series%'"
  const [row] = await query<{ state: string }>(dataDir, text, [pid])
  return row?.state
}

/** The database while the launcher creates it: its URL is published only when the control plane is ready. */
async function countTables(dataDir: string): Promise<number> {
  const client = await connect(
    `postgresql://postgres@/warren?host=${encodeURIComponent(getDatabaseSocketFolder(dataDir))}`,
  )
  try {
    const { rows } = await client.query<{ n: number }>(
      "select count(*)::int as n from pg_tables where schemaname = 'public'",
    )
    return rows[0]!.n
  } finally {
    await client.end()
  }
}

/** Writes until the server is killed; a number is added to the list when the server has acknowledged it. */
async function writeContinuously(client: pg.Client, acknowledged: number[]): Promise<void> {
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

async function listStored(dataDir: string, numbers: number[]): Promise<number[]> {
  if (numbers.length === 0) return []
  const rows = await query<{ n: string }>(dataDir, 'select n from e2e_writes where n = any($1)', [numbers])
  const found = new Set(rows.map((row) => Number(row.n)))
  return numbers.filter((n) => found.has(n))
}
