/** The reserve on a small volume. */
import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { closeSync, existsSync, mkdirSync, openSync, statfsSync, statSync, truncateSync, writeSync } from 'node:fs'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { type TestContext, test } from 'node:test'
import { reserveBytes } from '../disk-space.ts'
import { until } from '../testing/until.ts'
import { keepReserve, releaseReserve } from './reserve-file.ts'

const MIB = 1024 * 1024
const canMount =
  process.getuid?.() === 0 && spawnSync('sh', ['-c', 'test -e /dev/loop-control && command -v mkfs.ext4']).status === 0
const skip = canMount ? false : 'needs root and loop devices'

test('the file takes a share of the volume, within limits', () => {
  assert.equal(reserveBytes(1024 * MIB), 32 * MIB)
  assert.equal(reserveBytes(4 * 1024 * MIB), 81 * MIB)
  assert.equal(reserveBytes(1024 * 1024 * MIB), 256 * MIB)
})

test('it is released before the volume is full, and written again when there is space', { skip }, async (t) => {
  const volume = await mountVolume(t)
  const file = path.join(volume, 'postgres.reserve')
  const reports: string[] = []
  const reserve = keepReserve(volume, (text) => reports.push(text))
  t.after(() => reserve.stop())
  await until(() => existsSync(file) && statSync(file).size === 32 * MIB, 'the space is reserved')
  assert.ok(statSync(file).blocks * 512 >= 32 * MIB)

  const ballast = fill(volume, 20 * MIB)
  await until(() => !existsSync(file) && reports.length > 0, 'the space is released')
  assert.ok(statfsSync(volume).bavail * statfsSync(volume).bsize >= 40 * MIB)
  assert.match(reports.join(), /released 32 MiB that were reserved for PostgreSQL/)

  await rm(ballast)
  await until(() => existsSync(file) && statSync(file).size === 32 * MIB, 'the space is reserved again')
})

test('a start on a full volume releases it first, and leaves it on one that is not full', { skip }, async (t) => {
  const volume = await mountVolume(t)
  const file = path.join(volume, 'postgres.reserve')
  const reports: string[] = []
  const report = (text: string) => reports.push(text)
  const reserve = keepReserve(volume, report)
  await until(() => existsSync(file) && statSync(file).size === 32 * MIB, 'the space is reserved')
  await reserve.stop()
  await releaseReserve(volume, report)
  assert.deepEqual([existsSync(file), reports], [true, []])

  fill(volume, 1 * MIB)
  await releaseReserve(volume, report)

  assert.equal(existsSync(file), false)
  assert.match(reports.join(), /released 32 MiB/)
})

test('without space for it there is none, and nothing fails', { skip }, async (t) => {
  const volume = await mountVolume(t)
  fill(volume, 60 * MIB)
  const reports: string[] = []
  const reserve = keepReserve(volume, (text) => reports.push(text))
  await reserve.stop()

  assert.equal(existsSync(path.join(volume, 'postgres.reserve')), false)
  assert.deepEqual(reports, [])
})

async function mountVolume(t: TestContext): Promise<string> {
  const folder = await mkdtemp(path.join(tmpdir(), 'warren-reserve-'))
  const [image, mount] = [path.join(folder, 'image'), path.join(folder, 'disk')]
  mkdirSync(mount)
  closeSync(openSync(image, 'w'))
  truncateSync(image, 400 * MIB)
  t.after(async () => {
    await until(() => spawnSync('umount', [mount]).status === 0, 'the volume is unmounted')
    await rm(folder, { recursive: true })
  })
  for (const [command, ...args] of [
    ['mkfs.ext4', '-q', '-m', '0', image],
    ['mount', '-o', 'loop', image, mount],
  ] as const) {
    const { status, stderr } = spawnSync(command, args, { encoding: 'utf8' })
    assert.equal(status, 0, stderr)
  }
  return mount
}

/** Until only so much is free. */
function fill(folder: string, freeBytes: number): string {
  const file = path.join(folder, 'ballast')
  const fd = openSync(file, 'a')
  const chunk = Buffer.alloc(MIB)
  for (;;) {
    const { bavail, bsize } = statfsSync(folder)
    if (bavail * bsize <= freeBytes) break
    writeSync(fd, chunk)
  }
  closeSync(fd)
  return file
}
