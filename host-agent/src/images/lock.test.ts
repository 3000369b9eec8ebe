import assert from 'node:assert/strict'
import { existsSync } from 'node:fs'
import path from 'node:path'
import { test } from 'node:test'
import { pathToFileURL } from 'node:url'
import { until } from '@warren/kit/testing/until'
import { runCommand } from '../run-command.ts'
import { lock, tryLock } from './lock.ts'
import { makeFolder } from './testing.ts'

test('one holder at a time; the next gets it when it is released', async (t) => {
  const file = path.join(await makeFolder(t), 'lock')
  const first = await tryLock(file)
  let waits = 0

  assert.equal(await tryLock(file), undefined)
  const second = lock(file, () => waits++)
  await until(() => waits === 1, 'the second waits')
  await first?.release()

  await (await second).release()
  assert.equal(waits, 1)
})

test('a wait can be called off', async (t) => {
  const file = path.join(await makeFolder(t), 'lock')
  const held = await tryLock(file)

  await assert.rejects(lock(file, () => {}, AbortSignal.timeout(50)))
  await held?.release()
})

test('a holder that is killed holds nothing any more', async (t) => {
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
