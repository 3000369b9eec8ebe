import assert from 'node:assert/strict'
import { statSync } from 'node:fs'
import { mkdir, mkdtemp, rm, symlink, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { test } from 'node:test'
import { findDisk, major, minor } from './io.ts'

test('device numbers have the parts that the kernel names', () => {
  assert.deepEqual([major(0x801), minor(0x801)], [8, 1])
  assert.deepEqual([major(0xfe00), minor(0xfe00)], [254, 0])
  assert.deepEqual([major(0x10_0300), minor(0x10_0300)], [3, 256])
})

test('a partition stands for its disk, and a file system without a disk has none', async (t) => {
  const folder = await mkdtemp(path.join(tmpdir(), 'warren-io-'))
  t.after(() => rm(folder, { recursive: true }))
  const sys = path.join(folder, 'sys')
  const { dev } = statSync(folder)
  const name = `${major(dev)}:${minor(dev)}`
  assert.equal(findDisk(folder, sys), undefined)

  const partition = path.join(sys, 'vda', 'vda1')
  await mkdir(partition, { recursive: true })
  await writeFile(path.join(sys, 'vda', 'dev'), '254:0\n')
  await writeFile(path.join(partition, 'dev'), `${name}\n`)
  await writeFile(path.join(partition, 'partition'), '1\n')
  await symlink(partition, path.join(sys, name))

  assert.equal(findDisk(folder, sys), '254:0')
})
