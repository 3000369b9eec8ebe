import assert from 'node:assert/strict'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { checkDatabaseVolume, checkDisk, checkFloor, checkFolder, checkMemory, checkOpenFiles } from './resources.ts'

const GIB = 1024 ** 3

test('a disk with 10 GiB is fine, below that there is a note, and below 2 GiB the check fails', () => {
  assert.deepEqual(checkDisk('/data', 10 * GIB, 'set X'), { ok: true, detail: '/data: 10.0 GiB free' })
  assert.deepEqual(checkDisk('/data', 10 * GIB - 1, 'set X'), {
    ok: true,
    detail: '/data: 10.0 GiB free',
    note: 'little free space: 10.0 GiB or more is recommended',
  })
  assert.equal(checkDisk('/data', 2 * GIB, 'set X').ok, true)
  assert.deepEqual(checkDisk('/data', 1.5 * GIB, 'set X to a folder'), {
    ok: false,
    detail: '/data: 1.5 GiB free',
    fix: 'free some space, or set X to a folder with 10.0 GiB free',
  })
})

test('for a folder that does not exist its nearest parent is checked, and nothing is created', async (t) => {
  const parent = await mkdtemp(join(tmpdir(), 'warren-doctor-'))
  t.after(() => rm(parent, { recursive: true }))
  const folder = join(parent, 'not', 'yet')

  const result = await checkFolder(folder, 'set X to a folder')

  assert.match(result.detail, new RegExp(`^${folder}: [\\d.]+ GiB free$`))
  await assert.rejects(rm(join(parent, 'not')), { code: 'ENOENT' })
})

test('a folder below a file fails the check', async (t) => {
  const parent = await mkdtemp(join(tmpdir(), 'warren-doctor-'))
  t.after(() => rm(parent, { recursive: true }))
  await writeFile(join(parent, 'file'), '')

  const result = await checkFolder(join(parent, 'file', 'data'), 'set X to a folder')

  assert.equal(result.ok, false)
  assert.match(result.detail, /file is not a folder$/)
})

test('below the floor the check fails, and says what is refused', async () => {
  const low = await checkFloor(tmpdir(), 1)
  const high = await checkFloor(join(tmpdir(), 'not', 'yet'), 100_000_000)

  assert.match(low.detail, /^[\d.]+ GiB above the 0\.0 GiB that must stay free; guests that write are stopped below/)
  assert.ok(!high.ok)
  assert.match(high.detail, /^only \d+ MiB of disk space are free, and 100000000 MiB must stay free$/)
  assert.match(high.fix, /creates, forks and builds are refused/)
})

test('a database that shares its volume with sandboxes has a note', async () => {
  const result = await checkDatabaseVolume({ WARREN_DATA_DIR: tmpdir() })
  const other = await checkDatabaseVolume({ WARREN_DATA_DIR: tmpdir(), WARREN_DATABASE_DIR: '/dev/shm' })

  assert.match(
    JSON.stringify(result),
    /"ok":true.*MiB are kept for PostgreSQL; WARREN_DATABASE_DIR can be another volume/,
  )
  assert.match(other.detail, /^\/dev\/shm: [\d.]+ GiB free, on another volume than sandboxes$/)
})

test('memory for one sandbox is required, and below 4 GiB there is a note', () => {
  assert.equal(checkMemory(0.5 * GIB).ok, false)
  assert.match(JSON.stringify(checkMemory(2 * GIB)), /"ok":true.*"note":"enough for a few/)
  assert.deepEqual(checkMemory(23.2 * GIB), { ok: true, detail: '23.2 GiB available' })
})

test('the hard limit of open files is checked', () => {
  const limits = (soft: string, hard: string) =>
    `Max cpu time 1 2 seconds\nMax open files    ${soft}   ${hard}   files \n`

  assert.deepEqual(checkOpenFiles(limits('1024', '20000')), { ok: true, detail: 'up to 20000' })
  assert.deepEqual(checkOpenFiles(limits('1024', 'unlimited')), { ok: true, detail: 'up to unlimited' })
  assert.equal(checkOpenFiles(limits('1024', '2048')).ok, false)
})
