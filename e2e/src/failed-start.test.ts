/** A start that cannot succeed prints what is wrong and what to do, and leaves no process behind. */

import assert from 'node:assert/strict'
import { execFileSync, spawn } from 'node:child_process'
import { once } from 'node:events'
import { chmod, mkdir, writeFile } from 'node:fs/promises'
import { createServer } from 'node:net'
import path from 'node:path'
import { type TestContext, test } from 'node:test'
import { AS_ORDINARY_USER } from '@warren/kit/testing/ordinary-user'
import { until } from '@warren/kit/testing/until'
import { warrenCommand } from '@warren/kit/warren-command'
import {
  createDataDir,
  fetchPath,
  getDatabaseSocketFolder,
  getPostmasterPid,
  kill,
  launch,
  listProcesses,
  ROOT,
  startExpectingFailure,
  startInstance,
  stop,
} from './support/instance.ts'

const MAIN = path.join(ROOT, 'cli/src/main.ts')
const isRoot = process.getuid?.() === 0

test('a second start on the same data directory names the first, which keeps running', async (t) => {
  const dataDir = await createDataDir(t)
  const instance = await startInstance(dataDir)

  const { code, output } = await startExpectingFailure(dataDir)

  assert.equal(code, 1)
  assert.equal(output.trim(), `warren: Warren already runs on ${dataDir} (pid ${instance.pid}, ${instance.baseUrl})`)
  assert.equal((await fetchPath(instance, '/v1/whoami')).status, 200)
  assert.doesNotMatch(instance.output(), /starting it again/)

  await t.test('and it keeps running when the reader of its output disappears', async () => {
    const killed = getPostmasterPid(dataDir)
    instance.child.stdout!.destroy()
    instance.child.stderr!.destroy()

    // Restarting PostgreSQL prints a line, which has no reader now.
    kill(killed)

    const isBack = async () =>
      getPostmasterPid(dataDir) !== killed && (await fetchPath(instance, '/readyz')).status === 200
    await until(() => isBack().catch(() => false), 'it is ready again')
    assert.equal(await stop(instance), 0)
  })
})

test('exactly one of several starts at the same moment succeeds', async (t) => {
  const dataDir = await createDataDir(t)

  const starts = Array.from({ length: 4 }, () => launch(dataDir))
  const losers = await Promise.race([
    Promise.all(starts.map((start) => start.exited)),
    allButOne(starts.map((start) => start.exited.then(({ code }) => ({ code, output: start.output() })))),
  ])

  assert.equal(losers.length, 3)
  for (const loser of losers) {
    assert.equal(loser.code, 1)
    assert.match((loser as { output: string }).output, /already runs on/)
  }
  assert.equal(await stop(starts.find((start) => start.child.exitCode === null)!), 0)
})

for (const name of ['WARREN_PORT', 'WARREN_METRICS_PORT', 'WARREN_INGRESS_PORT']) {
  test(`the message about a port in use names the port and ${name}`, async (t) => {
    const dataDir = await createDataDir(t)
    const port = await occupyPort(t)

    const { code, output } = await startExpectingFailure(dataDir, { env: { [name]: String(port) } })

    assert.equal(code, 1)
    assert.equal(
      output.trim(),
      `warren: another program listens on port ${port} of 127.0.0.1. Stop it, or choose another port: ${name}=${port + 1} ${warrenCommand()} start`,
    )
    assert.deepEqual(listProcesses(dataDir), [])
  })
}

test('all invalid settings are named at once', async (t) => {
  const dataDir = await createDataDir(t)

  const { code, output } = await startExpectingFailure(dataDir, {
    env: { WARREN_PORT: 'http', WARREN_METRICS_PORT: '70000' },
  })

  assert.equal(code, 1)
  assert.equal(
    output.trim(),
    'warren: these settings are invalid:\n' +
      '  WARREN_PORT must be a whole number from 0 to 65535, not "http"\n' +
      '  WARREN_METRICS_PORT must be a whole number from 0 to 65535, not "70000"',
  )
})

test('an invalid setting of the control plane is named too', async (t) => {
  const dataDir = await createDataDir(t)

  const { code, output } = await startExpectingFailure(dataDir, { env: { WARREN_RATE_LIMIT: 'lots' } })

  assert.equal(code, 1)
  assert.match(output, /control plane … failed\n\nwarren: the control plane did not start/)
  assert.match(output, /WARREN_RATE_LIMIT must be a whole number from 0 to 10000000, not "lots"/)
  assert.deepEqual(listProcesses(dataDir), [])
})

test('a data directory below a file gets a clear message', async (t) => {
  const dataDir = await createDataDir(t)
  await writeFile(dataDir, '')

  const { code, output } = await startExpectingFailure(path.join(dataDir, 'below'))

  assert.equal(code, 1)
  assert.match(
    output,
    /^\n?warren: cannot use the data directory \S+ \(set WARREN_DATA_DIR to choose another\): ENOTDIR/,
  )
})

test('a data directory that is not writable gets a clear message', {
  skip: !AS_ORDINARY_USER && 'needs root',
}, async (t) => {
  const dataDir = await createDataDir(t)
  await mkdir(dataDir)
  await chmod(path.dirname(dataDir), 0o755)

  // As an ordinary user, because root ignores file modes.
  const { code, output } = await startExpectingFailure(dataDir, {
    command: [...AS_ORDINARY_USER!, process.execPath, MAIN, 'start'],
  })

  assert.equal(code, 1)
  assert.match(output, /warren: cannot use the data directory \S+ \(set WARREN_DATA_DIR to choose another\): EACCES/)
})

test('the message about a full disk names the disk', { skip: !canMount() && 'needs a mount namespace' }, async (t) => {
  const dataDir = await createDataDir(t)
  await mkdir(dataDir)

  const { code, output } = await startExpectingFailure(dataDir, {
    command: [
      ...['unshare', '--mount', 'sh', '-c'],
      `mount -t tmpfs -o size=20m full '${dataDir}' && exec '${process.execPath}' '${MAIN}' start`,
    ],
  })

  assert.equal(code, 1)
  assert.match(output, /PostgreSQL … failed\n/)
  assert.match(output, /The disk of \S+ is full \(\d+ MiB free\)\. Free some space and start again\.\n/)
  assert.deepEqual(listProcesses(dataDir), [])
})

test('the message explains why services cannot be confined, and what to do', {
  skip: !isRoot && 'needs root',
}, async (t) => {
  const dataDir = await createDataDir(t)

  const { code, output } = await startExpectingFailure(dataDir, {
    // As in a container without privileges.
    command: ['setpriv', '--bounding-set', '-sys_admin', '--', process.execPath, MAIN, 'start'],
  })

  assert.equal(code, 1)
  assert.match(output, /cannot confine a service \(.*Operation not permitted/)
  assert.match(output, /or start Warren as an ordinary user\.\n/)
  assert.deepEqual(listProcesses(dataDir), [])
})

/** As in a container: a user namespace with the ids up to 65535, which its parent has to write. */
const WITH_FEW_IDS = `
  unshare --user sh -c 'until grep -q . /proc/self/gid_map; do :; done; exec "$@"' sh "$@" &
  until [ "$(readlink /proc/$!/ns/user)" != "$(readlink /proc/self/ns/user)" ]; do :; done
  echo 0 0 65536 > /proc/$!/uid_map
  echo 0 0 65536 > /proc/$!/gid_map
  wait $!`

test('the message names the setting where the user ids of services do not exist', {
  skip: !isRoot && 'needs root',
}, async (t) => {
  const dataDir = await createDataDir(t)

  const { code, output } = await startExpectingFailure(dataDir, {
    command: ['sh', '-c', WITH_FEW_IDS, 'sh', process.execPath, MAIN, 'start'],
  })

  assert.equal(code, 1)
  assert.match(output, /the user ids from 1879048192 on.*do not exist in this container.*set WARREN_SERVICE_UID/)
})

test('PostgreSQL starts despite a stale pid file with the pid of an unrelated process', async (t) => {
  const dataDir = await createDataDir(t)
  assert.equal(await stop(await startInstance(dataDir)), 0)
  const other = spawn('sleep', ['1000'])
  t.after(() => kill(other.pid!))
  const lines = [
    other.pid,
    path.join(dataDir, 'postgres'),
    1,
    5432,
    path.join(dataDir, 'postgres'),
    '',
    '',
    'ready',
    '',
  ]
  await writeFile(path.join(dataDir, 'postgres/postmaster.pid'), lines.join('\n'))
  await writeFile(path.join(getDatabaseSocketFolder(dataDir), '.s.PGSQL.5432.lock'), lines.join('\n'))

  const instance = await startInstance(dataDir)

  assert.equal((await fetchPath(instance, '/v1/whoami')).status, 200)
  assert.equal(other.exitCode, null)
})

for (const [what, name] of Object.entries({
  'has spaces and punctuation': `my "data", 100% \u00fc & 'more'`,
  'is longer than a socket path may be': 'deep/'.repeat(30),
})) {
  test(`a data directory whose name ${what} works`, async (t) => {
    const dataDir = await createDataDir(t, name)

    const instance = await startInstance(dataDir)

    assert.equal((await fetchPath(instance, '/v1/whoami')).status, 200)
    assert.equal(await stop(instance), 0)
    assert.deepEqual(listProcesses(dataDir), [])
  })
}

test('PostgreSQL variables in the environment do not affect the embedded server', async (t) => {
  const dataDir = await createDataDir(t)

  const instance = await startInstance(dataDir, {
    env: { PGPORT: '6543', PGHOST: 'elsewhere', PGDATABASE: 'other', PGSSLMODE: 'require', PGDATA: '/nowhere' },
  })

  assert.equal((await fetchPath(instance, '/v1/whoami')).status, 200)
})

/** Writes a shell script beside the data directory and returns its folder, for `PATH`. */
async function occupyPort(t: TestContext): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1')
  t.after(() => void server.close())
  await once(server, 'listening')
  return (server.address() as { port: number }).port
}

/** Waits for all promises except the last one to settle. */
async function allButOne<T>(promises: Promise<T>[]): Promise<T[]> {
  const settled: T[] = []
  const { promise, resolve } = Promise.withResolvers<T[]>()
  for (const one of promises) {
    void one.then((value) => {
      settled.push(value)
      if (settled.length === promises.length - 1) resolve([...settled])
    })
  }
  return promise
}

function canMount(): boolean {
  try {
    execFileSync('unshare', ['--mount', 'true'], { stdio: 'ignore' })
    return isRoot
  } catch {
    return false
  }
}
