import assert from 'node:assert/strict'
import { existsSync, readFileSync } from 'node:fs'
import path from 'node:path'
import { test } from 'node:test'
import { setImmediate as nextTurn } from 'node:timers/promises'
import { pathToFileURL } from 'node:url'
import { passTime } from '@warren/kit/testing/pass-time'
import { until } from '@warren/kit/testing/until'
import { withTimeout } from '@warren/kit/timeout'
import { runCommand } from '../run-command.ts'
import { lock, tryLock } from './lock.ts'
import { makeFolder } from './testing.ts'

test('one caller holds the lock at a time, and the next one gets it after the release', async (t) => {
  const file = path.join(await makeFolder(t), 'lock')
  const first = await tryLock(file)
  let waits = 0

  assert.equal(await tryLock(file), undefined)
  const second = lock(file, () => waits++)
  await until(() => waits === 1, 'the second caller waits')
  await first?.release()

  await (await second).release()
  assert.equal(waits, 1)
})

test('waiting for the lock can be aborted', async (t) => {
  const file = path.join(await makeFolder(t), 'lock')
  const held = await tryLock(file)

  await assert.rejects(lock(file, () => {}, AbortSignal.timeout(50)))
  await held?.release()
})

test('an abort just before the wait begins is noticed, and nothing keeps the lock', async (t) => {
  const file = path.join(await makeFolder(t), 'lock')
  const held = await tryLock(file)
  t.after(() => held?.release())
  const abort = new AbortController()

  const waiting = lock(file, () => queueMicrotask(() => abort.abort()), abort.signal)

  await assert.rejects(withTimeout(2_000, waiting, 'the abort'), { name: 'AbortError' })
  await held?.release()
  await (await tryLock(file))!.release()
})

test('a stop signal to every process of a service does not release the lock', async (t) => {
  const file = path.join(await makeFolder(t), 'lock')
  const held = await tryLock(file)
  const holder = Number(readFileSync(`/proc/self/task/${process.pid}/children`, 'utf8'))

  for (const signal of ['SIGTERM', 'SIGINT', 'SIGHUP'] as const) process.kill(holder, signal)
  await passTime(100, 'the signals must have no effect')

  assert.equal(await tryLock(file), undefined)
  await held?.release()
})

test('the lock of a killed process is released', async (t) => {
  const folder = await makeFolder(t)
  const [file, mark] = [path.join(folder, 'lock'), path.join(folder, 'mark')]
  const module = pathToFileURL(path.join(import.meta.dirname, 'lock.ts')).href
  const program = `
    import { writeFileSync } from 'node:fs'
    import { tryLock } from ${JSON.stringify(module)}
    const held = await tryLock(${JSON.stringify(file)})
    writeFileSync(${JSON.stringify(mark)}, '')
    setInterval(() => held, 1000)
  `
  const killing = new AbortController()
  const holder = runCommand(process.execPath, ['--input-type=module', '--eval', program], { signal: killing.signal })
  await Promise.race([until(() => existsSync(mark), 'the other process holds the lock'), holder])
  assert.equal(await tryLock(file), undefined)

  killing.abort() // SIGKILL
  await assert.rejects(holder)

  await (await lock(file, () => {})).release()
})

test('every one of several waiting callers gets the lock, one at a time', async (t) => {
  const file = path.join(await makeFolder(t), 'lock')
  const first = await tryLock(file)
  let holders = 0
  let waits = 0

  const waiting = Array.from({ length: 5 }, async () => {
    const held = await lock(file, () => waits++)
    assert.equal(++holders, 1)
    await nextTurn()
    holders--
    await held.release()
  })
  await until(() => waits === 5, 'all callers wait')
  await first?.release()
  await Promise.all(waiting)
})

test('a held lock does not keep its process running', async (t) => {
  const file = path.join(await makeFolder(t), 'lock')
  const module = pathToFileURL(path.join(import.meta.dirname, 'lock.ts')).href
  const program = `
    import { tryLock } from ${JSON.stringify(module)}
    await tryLock(${JSON.stringify(file)})
  `

  const { exitCode } = await runCommand(process.execPath, ['--input-type=module', '--eval', program])

  assert.equal(exitCode, 0)
  await (await lock(file, () => {})).release()
})

test('a lock in a folder that does not exist is an error', async (t) => {
  await assert.rejects(tryLock(path.join(await makeFolder(t), 'missing/lock')), { code: 'ENOENT' })
})
