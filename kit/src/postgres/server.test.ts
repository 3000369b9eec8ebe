import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import { chmod, mkdir, mkdtemp, readFile, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { type TestContext, test } from 'node:test'
import { startPostgres } from './server.ts'

test('a server that is halted, children and all, can still be stopped', async (t) => {
  const server = await startPostgres(await makeOptions(t))
  await halt(server.pid)
  const startedAt = Date.now()

  await server.stop()

  await server.exited
  assert.ok(Date.now() - startedAt < 5_000)
})

test('a server whose directory was removed can still be stopped', async (t) => {
  const options = await makeOptions(t)
  const server = await startPostgres(options)
  await rm(options.dir, { recursive: true })

  await server.stop()

  await server.exited
})

test('a start that is aborted ends what it has begun', async (t) => {
  const options = await makeOptions(t)
  const aborted = startPostgres(options, AbortSignal.timeout(200))

  await assert.rejects(aborted, { name: 'TimeoutError' })

  const server = await startPostgres(options)
  await server.stop()
})

test('a socket folder that others can enter is refused', async (t) => {
  const options = await makeOptions(t, 'deep/'.repeat(30))
  const name = createHash('sha256').update(options.dir).digest('hex').slice(0, 16)
  const folder = path.join(tmpdir(), `warren-${name}`)
  await mkdir(folder)
  await chmod(folder, 0o777)
  t.after(() => rm(folder, { recursive: true }))

  await assert.rejects(startPostgres(options), /must belong to us alone/)
})

/** The parent first, so that no child is born afterwards. */
async function halt(pid: number): Promise<void> {
  process.kill(pid, 'SIGSTOP')
  const children = await readFile(`/proc/${pid}/task/${pid}/children`, 'utf8')
  for (const child of children.trim().split(' ')) {
    try {
      process.kill(Number(child), 'SIGSTOP')
    } catch (error) {
      // The server's short-lived workers end whenever they like.
      if ((error as NodeJS.ErrnoException).code !== 'ESRCH') throw error
    }
  }
}

async function makeOptions(t: TestContext, name = '') {
  const folder = await mkdtemp(path.join(tmpdir(), 'warren-kit-'))
  t.after(() => rm(folder, { recursive: true, force: true }))
  return { dir: path.join(folder, name, 'postgres'), logFile: path.join(folder, 'postgres.log'), durable: false }
}
