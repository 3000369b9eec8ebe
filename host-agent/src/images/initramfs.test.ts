import assert from 'node:assert/strict'
import { readdir, readFile, writeFile } from 'node:fs/promises'
import path from 'node:path'
import { test } from 'node:test'
import { gunzipSync } from 'node:zlib'
import { ensureInitramfs, packInitramfs, sweepInitramfs } from './initramfs.ts'
import { pathOf } from './layout.ts'
import { makeCache, makeFolder } from './testing.ts'

async function makeInputs(folder: string, agent = '\x7fELF agent') {
  const files = {
    programs: { agent: path.join(folder, 'agent'), bucketMount: path.join(folder, 'bucket-mount') },
    first: path.join(folder, 'b.ko'),
    second: path.join(folder, 'a.ko'),
  }
  await writeFile(files.programs.agent, agent, 'latin1')
  await writeFile(files.programs.bucketMount, '\x7fELF mount', 'latin1')
  await writeFile(files.first, 'first')
  await writeFile(files.second, 'second')
  return files
}

test('the agent is /init, and the modules are listed in load order', async (t) => {
  const { programs, first, second } = await makeInputs(await makeFolder(t))

  const text = (await packInitramfs(programs, [first, second])).toString('latin1')

  for (const name of ['dev/console', 'newroot', 'modules/a.ko', 'modules/b.ko', 'init', 'bucket-mount']) {
    assert.ok(text.includes(`${name}\0`), name)
  }
  assert.ok(text.includes('b.ko\na.ko\n'))
})

test('the same inputs give the same file, and a new agent gives another', async (t) => {
  const cache = await makeCache(t)
  const folder = await makeFolder(t)
  const { programs, first } = await makeInputs(folder)

  const once = await ensureInitramfs(cache, { bootModules: [first] }, programs)
  const twice = await ensureInitramfs(cache, { bootModules: [first] }, programs)
  await makeInputs(folder, '\x7fELF newer')
  const newer = await ensureInitramfs(cache, { bootModules: [first] }, programs)

  assert.deepEqual(twice, once)
  assert.notEqual(newer.digest, once.digest)
  assert.ok(gunzipSync(await readFile(newer.path)).includes('\x7fELF newer'))
  assert.equal((await readdir(pathOf(cache, 'initramfs'))).length, 2)
  assert.deepEqual(await readdir(pathOf(cache, 'building')), [])
})

test('a file that was not used for long is removed', async (t) => {
  const cache = await makeCache(t)
  const { programs } = await makeInputs(await makeFolder(t))
  await ensureInitramfs(cache, { bootModules: [] }, programs)
  const days = (count: number) => Date.now() + count * 24 * 3_600_000

  await sweepInitramfs(cache, days(29))
  assert.equal((await readdir(pathOf(cache, 'initramfs'))).length, 1)
  await sweepInitramfs(cache, days(31))
  assert.equal((await readdir(pathOf(cache, 'initramfs'))).length, 0)
})

test('an agent that is missing or not a program is reported', async (t) => {
  const cache = await makeCache(t)
  const folder = await makeFolder(t)
  const { programs } = await makeInputs(folder, 'no program')

  await assert.rejects(ensureInitramfs(cache, { bootModules: [] }, programs), /guest agent .* is not an ELF program/)
  await assert.rejects(
    ensureInitramfs(cache, { bootModules: [] }, { ...programs, agent: path.join(folder, 'absent') }),
    /no guest agent at .*; build it first/,
  )
})
