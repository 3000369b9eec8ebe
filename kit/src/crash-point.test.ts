import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync } from 'node:fs'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { after, test } from 'node:test'
import { CRASH_POINTS_VARIABLE } from './crash-point.ts'
import { until } from './testing/until.ts'

test('without a directory a crash point does nothing', async () => {
  const { crashPoint } = await import('./crash-point.ts')

  assert.equal(crashPoint('work.begun'), undefined)
})

test('a crash point without a file is passed', async () => {
  const directory = await pointsDirectory()

  assert.deepEqual(await startProcess(directory).ended, { code: 0, signal: null, output: 'before after ' })
})

test('one process is killed at a crash point, and the next one passes it', async () => {
  const directory = await pointsDirectory()
  await writeFile(path.join(directory, 'work.begun'), 'kill')

  const first = await startProcess(directory).ended
  const second = await startProcess(directory).ended

  assert.deepEqual(first, { code: null, signal: 'SIGKILL', output: 'before ' })
  assert.deepEqual(second, { code: 0, signal: null, output: 'before after ' })
  assert.equal(existsSync(path.join(directory, 'work.begun.reached')), true)
})

test('a process is held at a crash point until the file is removed', async () => {
  const directory = await pointsDirectory()
  const file = path.join(directory, 'work.begun')
  await writeFile(file, 'hold')

  const held = startProcess(directory)
  await until(() => existsSync(`${file}.reached`))
  const outputWhileHeld = held.output()
  await rm(file)

  assert.equal(outputWhileHeld, 'before ')
  assert.deepEqual(await held.ended, { code: 0, signal: null, output: 'before after ' })
})

test('an unknown action is an error', async () => {
  const directory = await pointsDirectory()
  await writeFile(path.join(directory, 'work.begun'), 'explode')

  assert.deepEqual(await startProcess(directory).ended, { code: 1, signal: null, output: 'before ' })
})

async function pointsDirectory(): Promise<string> {
  const directory = await mkdtemp(path.join(tmpdir(), 'crash-points-'))
  after(() => rm(directory, { recursive: true }))
  return directory
}

/** A process that prints something before and after a crash point. */
function startProcess(directory: string) {
  const module = new URL('./crash-point.ts', import.meta.url).href
  const program = `const { crashPoint } = await import(${JSON.stringify(module)})
    process.stdout.write('before ')
    await crashPoint('work.begun')
    process.stdout.write('after ')`
  const child = spawn(process.execPath, ['--input-type=module', '-e', program], {
    env: { ...process.env, NODE_TEST_CONTEXT: undefined, [CRASH_POINTS_VARIABLE]: directory },
    stdio: ['ignore', 'pipe', 'ignore'],
  })
  after(() => child.kill('SIGKILL'))
  let output = ''
  child.stdout.on('data', (chunk) => {
    output += chunk
  })
  const ended = once(child, 'close').then(([code, signal]) => ({ code, signal, output }))
  return { ended, output: () => output }
}
