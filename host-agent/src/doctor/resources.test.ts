import assert from 'node:assert/strict'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { cacheFolder, checkFolder, judgeDisk, judgeMemory, judgeOpenFiles } from './resources.ts'

const GIB = 1024 ** 3

test('a disk is fine from 10 GiB, noted below, refused under 2', () => {
  assert.deepEqual(judgeDisk('/data', 10 * GIB, 'set X'), { ok: true, detail: '/data: 10.0 GiB free' })
  assert.deepEqual(judgeDisk('/data', 10 * GIB - 1, 'set X'), {
    ok: true,
    detail: '/data: 10.0 GiB free',
    note: 'little room: 10.0 GiB are comfortable',
  })
  assert.equal(judgeDisk('/data', 2 * GIB, 'set X').ok, true)
  assert.deepEqual(judgeDisk('/data', 1.5 * GIB, 'set X to a folder'), {
    ok: false,
    detail: '/data: 1.5 GiB free',
    fix: 'make room, or set X to a folder with 10.0 GiB free',
  })
})

test('a folder that is not there yet is judged by its nearest parent and not made', async (t) => {
  const parent = await mkdtemp(join(tmpdir(), 'warren-doctor-'))
  t.after(() => rm(parent, { recursive: true }))
  const folder = join(parent, 'not', 'yet')

  const result = await checkFolder(folder, 'set X to a folder')

  assert.match(result.detail, new RegExp(`^${folder}: [\\d.]+ GiB free$`))
  await assert.rejects(rm(join(parent, 'not')), { code: 'ENOENT' })
})

test('a folder under something that is no folder cannot be made', async (t) => {
  const parent = await mkdtemp(join(tmpdir(), 'warren-doctor-'))
  t.after(() => rm(parent, { recursive: true }))
  await writeFile(join(parent, 'file'), '')

  const result = await checkFolder(join(parent, 'file', 'data'), 'set X to a folder')

  assert.equal(result.ok, false)
  assert.match(result.detail, /file is no folder$/)
})

test('the cache is where XDG says, else in the home folder', () => {
  assert.equal(cacheFolder({ XDG_CACHE_HOME: '/var/cache', HOME: '/home/ada' }), '/var/cache/warren')
  assert.equal(cacheFolder({ HOME: '/home/ada' }), '/home/ada/.cache/warren')
})

test('memory for one sandbox is the least, more is noted until it is comfortable', () => {
  assert.equal(judgeMemory(0.5 * GIB).ok, false)
  assert.match(JSON.stringify(judgeMemory(2 * GIB)), /"ok":true.*"note":"room for a few/)
  assert.deepEqual(judgeMemory(23.2 * GIB), { ok: true, detail: '23.2 GiB available' })
})

test('of the limits of open files the hard one counts', () => {
  const limits = (soft: string, hard: string) =>
    `Max cpu time 1 2 seconds\nMax open files    ${soft}   ${hard}   files \n`

  assert.deepEqual(judgeOpenFiles(limits('1024', '20000')), { ok: true, detail: 'up to 20000' })
  assert.deepEqual(judgeOpenFiles(limits('1024', 'unlimited')), { ok: true, detail: 'up to unlimited' })
  assert.equal(judgeOpenFiles(limits('1024', '2048')).ok, false)
})
