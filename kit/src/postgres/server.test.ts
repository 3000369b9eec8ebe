import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import { once } from 'node:events'
import { chmod, chown, mkdir, mkdtemp, readFile, rename, rm, stat, symlink } from 'node:fs/promises'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { type TestContext, test } from 'node:test'
import pg from 'pg'
import { scaleLimit } from '../testing/slowness.ts'
import { startPostgres } from './server.ts'

test('a server whose processes are suspended can be stopped', async (t) => {
  const server = await startPostgres(await makeOptions(t))
  await suspend(server.pid)
  const startedAt = Date.now()

  await server.stop()

  await server.exited
  assert.ok(Date.now() - startedAt < scaleLimit(5_000))
})

test('a server whose directory was removed can be stopped', async (t) => {
  const options = await makeOptions(t)
  const server = await startPostgres(options)
  await rm(options.dir, { recursive: true })

  await server.stop()

  await server.exited
})

test('an aborted start stops everything that it has started', async (t) => {
  const options = await makeOptions(t)
  const aborted = startPostgres(options, AbortSignal.timeout(200))

  await assert.rejects(aborted, { name: 'TimeoutError' })

  const server = await startPostgres(options)
  await server.stop()
})

test('a socket directory that other users can enter is refused', async (t) => {
  const options = await makeOptions(t, 'deep/'.repeat(30))
  const name = createHash('sha256').update(options.dir).digest('hex').slice(0, 16)
  const folder = path.join(tmpdir(), `warren-${name}`)
  await mkdir(folder)
  await chmod(folder, 0o777)
  t.after(() => rm(folder, { recursive: true }))

  await assert.rejects(startPostgres(options), /must belong to this user alone/)
})

test('a socket directory that is a link of another user to somewhere else is refused', async (t) => {
  const options = await makeOptions(t, 'deep/'.repeat(30))
  const name = createHash('sha256').update(options.dir).digest('hex').slice(0, 16)
  const victim = path.join(path.dirname(options.logFile), 'victim')
  await mkdir(victim, { mode: 0o700 })
  await symlink(victim, path.join(tmpdir(), `warren-${name}`))
  t.after(() => rm(path.join(tmpdir(), `warren-${name}`)))

  await assert.rejects(startPostgres(options), /must belong to this user alone/)

  const { uid, mode } = await stat(victim)
  assert.deepEqual([uid, mode & 0o777], [process.getuid?.(), 0o700])
})

for (const [where, name] of [
  ['in the data directory', ''],
  ['elsewhere, because the path of the data directory is too long,', 'deep/'.repeat(30)],
] as const) {
  test(`a socket directory ${where} that belongs to another user of services is taken over`, {
    skip: process.getuid?.() !== 0 && 'an ordinary user has no jail',
  }, async (t) => {
    const options = await makeOptions(t, name)
    const hash = createHash('sha256').update(options.dir).digest('hex').slice(0, 16)
    const folder = name
      ? path.join(tmpdir(), `warren-${hash}`)
      : path.join(path.dirname(options.dir), 'postgres-socket')
    await mkdir(folder, { recursive: true, mode: 0o750 })
    t.after(() => rm(folder, { recursive: true, force: true }))
    // As in a restored or copied data directory, or after a change of WARREN_SERVICE_UID.
    await chown(folder, 4_000_000_000, 4_000_000_008)

    const server = await startPostgres(options)

    await server.stop()
    assert.equal((await stat(folder)).uid, (await stat(options.dir)).uid)
  })
}

test('a log of the database behind a link is refused before anything is handed over', {
  skip: process.getuid?.() !== 0 && 'an ordinary user has no jail',
}, async (t) => {
  const options = await makeOptions(t)
  await (await startPostgres(options)).stop()
  const [log, elsewhere] = [path.join(options.dir, 'pg_wal'), path.join(path.dirname(options.dir), 'elsewhere')]
  await rename(log, elsewhere)
  await symlink(elsewhere, log)
  await chown(options.dir, 0, 0)

  await assert.rejects(startPostgres(options), /pg_wal is a link, which the jail of PostgreSQL does not show/)

  assert.equal((await stat(options.dir)).uid, 0)
})

test('a server that was taken over cannot ask for the password of another server', async (t) => {
  const server = await startPostgres(await makeOptions(t))
  await server.stop()
  const socket = path.join(new URL(server.url.replace('@/', '@localhost/')).searchParams.get('host')!, '.s.PGSQL.5432')
  const received: string[] = []
  const fake = createServer((client) => {
    client.on('error', () => {})
    client.once('data', () => client.write(ASK_FOR_PASSWORD))
    client.on(
      'data',
      (chunk) => chunk[0] === PASSWORD_MESSAGE && received.push(chunk.toString('latin1')) && client.end(),
    )
  })
  await once(fake.listen(socket), 'listening')
  t.after(() => fake.close())
  process.env.PGPASSWORD = 'password-of-another-server'
  t.after(() => delete process.env.PGPASSWORD)

  const client = new pg.Client({ connectionString: server.url })
  client.on('error', () => {})
  await assert.rejects(client.connect())

  assert.equal(received.length, 1)
  assert.doesNotMatch(received[0]!, /another-server/)
})

/** AuthenticationCleartextPassword. */
const ASK_FOR_PASSWORD = Buffer.from([0x52, 0, 0, 0, 8, 0, 0, 0, 3])
const PASSWORD_MESSAGE = 'p'.charCodeAt(0)

/** The parent first, so that it starts no child afterwards. */
async function suspend(pid: number): Promise<void> {
  process.kill(pid, 'SIGSTOP')
  const children = await readFile(`/proc/${pid}/task/${pid}/children`, 'utf8')
  for (const child of children.trim().split(' ')) {
    try {
      process.kill(Number(child), 'SIGSTOP')
    } catch (error) {
      // Workers of the server can end at any time.
      if ((error as NodeJS.ErrnoException).code !== 'ESRCH') throw error
    }
  }
}

async function makeOptions(t: TestContext, name = '') {
  const folder = await mkdtemp(path.join(tmpdir(), 'warren-kit-'))
  t.after(() => rm(folder, { recursive: true, force: true }))
  return { dir: path.join(folder, name, 'postgres'), logFile: path.join(folder, 'postgres.log'), durable: false }
}
