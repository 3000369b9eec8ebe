import assert from 'node:assert/strict'
import { existsSync } from 'node:fs'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { test } from 'node:test'
import { passTime } from '@warren/kit/testing/pass-time'
import { readHostConfig } from '../config.ts'
import { acquireProcessLock } from '../process-lock.ts'
import { snapshots } from './main.ts'
import { openSnapshotStore } from './store.ts'
import { makeManifest } from './testing.ts'

const SANDBOX = `sb-${'0'.repeat(26)}`

async function run(dataDir: string, ...args: string[]) {
  let [out, err] = ['', '']
  const code = await snapshots(args, {
    env: { WARREN_DATA_DIR: dataDir, HOME: dataDir },
    stdout: { write: (text: string) => (out += text) },
    stderr: { write: (text: string) => (err += text) },
  })
  return { code, out, err }
}

async function makeData(t: { after(end: () => Promise<void>): void }) {
  const dataDir = await mkdtemp(path.join(tmpdir(), 'warren-snapshots-'))
  t.after(() => rm(dataDir, { recursive: true }))
  const store = await openSnapshotStore(path.join(dataDir, 'snapshots'))
  await store.add(await makeManifest(store, SANDBOX, 3, ['memory', 'state', 'disk']))
  return { dataDir, store }
}

test('ls lists the snapshots, and verify finds them intact', async (t) => {
  const { dataDir } = await makeData(t)

  const listed = await run(dataDir, 'ls')
  const verified = await run(dataDir, 'verify', SANDBOX)
  const json = JSON.parse((await run(dataDir, 'ls', '--json')).out)

  assert.equal(listed.code, 0)
  assert.match(listed.out, /^SANDBOX +GENERATION +SAVED +DISK LAYERS +SIZE +STATE\nsb-0+ +3 .* saved\n$/)
  assert.deepEqual([verified.code, verified.out.trim().endsWith('intact')], [0, true])
  assert.equal(json[0].generation, 3)
})

test('verify names a changed or missing file and exits with 1', async (t) => {
  const { dataDir, store } = await makeData(t)

  await writeFile(store.fileOf('disk'), 'dusk')
  const changed = await run(dataDir, 'verify')
  await rm(store.fileOf('disk'))
  const missing = await run(dataDir, 'verify')

  assert.equal(changed.code, 1)
  assert.match(changed.out, /damaged: disk: the checksum of MiB 0 does not match/)
  assert.match(missing.out, /damaged: disk is missing/)
})

test('gc removes files that no generation refers to', async (t) => {
  const { dataDir, store } = await makeData(t)
  await writeFile(store.fileOf('left-over'), 'x')

  assert.match((await run(dataDir, 'gc')).out, /^removed 1 files/)
  assert.match((await run(dataDir, 'gc')).out, /^removed 0 files/)
  assert.equal((await run(dataDir, 'verify')).code, 0)
})

test('gc waits for a host agent that is starting', async (t) => {
  const { dataDir, store } = await makeData(t)
  await writeFile(store.fileOf('left-over'), 'x')
  const release = await acquireProcessLock('netd', readHostConfig({ WARREN_DATA_DIR: dataDir }).instance)

  const collecting = run(dataDir, 'gc')
  await passTime(200, 'it must keep waiting')
  assert.ok(existsSync(store.fileOf('left-over')))
  release()

  assert.match((await collecting).out, /^removed 1 files/)
})

test('a wrong command line is answered with the help', async (t) => {
  const { dataDir } = await makeData(t)
  for (const args of [[], ['burn'], ['gc', 'x'], ['ls', 'a', 'b'], ['ls', '--nonsense']]) {
    const { code, err } = await run(dataDir, ...args)
    assert.equal(code, 2, args.join(' '))
    assert.match(err, /^Usage: \S*warren snapshots/m)
  }
  assert.equal((await run(dataDir, '--help')).code, 0)
  assert.match((await run(dataDir, 'ls', 'sb-none')).err, /there is no snapshot of sb-none/)
})
