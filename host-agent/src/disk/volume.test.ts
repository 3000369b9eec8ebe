import assert from 'node:assert/strict'
import { link, mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { type TestContext, test } from 'node:test'
import { diskLevels, reserveBytes } from '@warren/kit/disk-space'
import { until } from '@warren/kit/testing/until'
import { HostError } from '../host-error.ts'
import { openVolume, sumFolders, type Volume } from './volume.ts'

const MIB = 1024 * 1024
const TIB_MIB = 1024 * 1024

async function makeFolder(t: TestContext): Promise<string> {
  const folder = await mkdtemp(path.join(tmpdir(), 'warren-volume-'))
  t.after(() => rm(folder, { recursive: true }))
  return folder
}

test('the floor is a share of the volume, within limits, unless the operator sets it', () => {
  const floorMib = (totalMib: number, setting = 0) =>
    diskLevels({ totalBytes: totalMib * MIB }, setting).floorBytes / MIB
  assert.deepEqual([floorMib(2_500), floorMib(20_000), floorMib(1_000_000)], [256, 1_000, 4_096])
  assert.equal(floorMib(20_000, 5_000), 5_000)
  const { floorBytes, stopBytes, lastBytes } = diskLevels({ totalBytes: 20_000 * MIB }, 0)
  assert.ok(floorBytes > stopBytes && stopBytes > lastBytes && lastBytes > 0)
})

test('what is reserved for PostgreSQL is not for guests: all of them are stopped before it is released', () => {
  for (const totalMib of [1_000, 5_000, 10_000, 25_000, 100_000, 1_000_000]) {
    const { stopBytes, lastBytes } = diskLevels({ totalBytes: totalMib * MIB }, 0)
    assert.ok(lastBytes >= reserveBytes(totalMib * MIB) && lastBytes < stopBytes, `${totalMib} MiB`)
  }
  const { stopBytes, lastBytes } = diskLevels({ totalBytes: 1_000_000 * MIB }, 100)
  assert.equal(lastBytes, stopBytes)
})

test('below the floor, and for what does not fit, there is an error with the numbers', async (t) => {
  const folder = await makeFolder(t)
  const [roomy, full] = [openVolume(folder, 1), openVolume(folder, 100 * TIB_MIB)]

  roomy.checkFloor('a new sandbox')
  assert.equal(await roomy.withRoom('the saved memory', 1, async () => 'written'), 'written')

  const isDiskFull = (text: RegExp) => (error: HostError) => error.code === 'disk_full' && text.test(error.message)
  assert.throws(
    () => full.checkFloor('a new sandbox'),
    isDiskFull(/^no space for a new sandbox: only \d+ MiB of disk space are free, and 104857600 MiB must stay free$/),
  )
  await assert.rejects(
    roomy.withRoom('the saved memory', 100 * TIB_MIB * MIB, () => assert.fail('it was written')),
    isDiskFull(/^no space for the saved memory: it needs up to 104857600 MiB, and \d+ MiB of disk space are free$/),
  )
  assert.ok(new HostError('disk_full', '').status === 503)
})

/** A volume of 5,000 MiB whose free space the test sets. The last 100 MiB are not for writes. */
function openFake(folder: string) {
  const space = { freeMib: 1_000 }
  const read = () => ({ totalBytes: 5_000 * MIB, freeBytes: space.freeMib * MIB })
  return { space, volume: openVolume(folder, 500, read), reopen: () => openVolume(folder, 500, read) }
}

test('of several writes at once only those start that fit together, and the others wait', async (t) => {
  const { space, volume } = openFake(await makeFolder(t))
  const started: string[] = []
  const begin = (name: string) => {
    const { promise, resolve } = Promise.withResolvers<void>()
    const written = volume.withRoom(name, 400 * MIB, () => {
      started.push(name)
      return promise
    })
    return { written, end: resolve }
  }

  const [one, two, three, four] = [begin('one'), begin('two'), begin('three'), begin('four')]
  assert.deepEqual(started, ['one', 'two'])

  // They wrote less than they might have, so the others fit as well.
  one.end()
  await one.written
  space.freeMib = 950
  two.end()
  await two.written
  await until(() => started.length === 4, 'the others start')
  three.end()
  four.end()
  await Promise.all([three.written, four.written])

  const last = begin('last')
  const late = begin('late')
  const refused = assert.rejects(begin('refused').written, {
    code: 'disk_full',
    message: /^no space for refused: it needs up to 400 MiB, and 450 MiB/,
  })
  space.freeMib = 450 // What was written took the space that the third needs.
  last.end()
  late.end()
  await Promise.all([last.written, late.written, refused])
  assert.equal(started.includes('refused'), false)
})

test('a write that waits for its turn can be aborted, and one that has begun cannot', async (t) => {
  const { volume } = openFake(await makeFolder(t))
  const aborts = [new AbortController(), new AbortController()] as const
  const { promise, resolve } = Promise.withResolvers<string>()
  const first = volume.withRoom('one', 600 * MIB, () => promise, aborts[0].signal)
  const second = volume.withRoom('two', 600 * MIB, () => assert.fail('it was written'), aborts[1].signal)

  for (const abort of aborts) abort.abort(new Error('deleted'))
  await assert.rejects(second, { message: 'deleted' })

  resolve('written')
  assert.equal(await first, 'written')
  await assert.rejects(
    volume.withRoom('three', MIB, () => assert.fail('it was written'), aborts[0].signal),
    { message: 'deleted' },
  )
  assert.equal(await volume.withRoom('four', 600 * MIB, async () => 'also written'), 'also written')
})

test('reports do not wait for a sum, except for the first', async (t) => {
  t.mock.timers.enable({ apis: ['Date'] })
  const sums: PromiseWithResolvers<number>[] = []
  const read = () => ({ totalBytes: 5_000 * MIB, freeBytes: 1_000 * MIB })
  const volume = openVolume('/unused', 500, read, () => {
    sums.push(Promise.withResolvers())
    return sums.at(-1)!.promise
  })
  const sandboxesMib = async () => (await volume.report()).sandboxes_mib
  const both = [sandboxesMib(), sandboxesMib()]
  sums[0]!.resolve(7 * MIB)
  assert.deepEqual(await Promise.all(both), [7, 7])

  t.mock.timers.tick(30_000)
  assert.equal(await sandboxesMib(), 7)
  t.mock.timers.tick(30_000) // The second sum takes longer than the time between two.
  assert.equal(await sandboxesMib(), 7)
  sums[1]!.resolve(8 * MIB)
  await until(async () => (await sandboxesMib()) === 8, 'the second sum is reported')

  assert.equal(sums.length, 2)
})

test('what sandboxes have and what is free is never too much together, whatever happened since it was measured', async (t) => {
  const folder = await makeFolder(t)
  const file = path.join(folder, 'bodies', 'disk')
  await mkdir(path.dirname(file))
  await writeFile(file, Buffer.alloc(8 * MIB, 1))
  const { space, volume, reopen } = openFake(folder)
  const sum = async (of: Volume) => {
    const { free_mib, sandboxes_mib } = await of.report()
    return free_mib + sandboxes_mib
  }
  assert.equal(await sum(volume), 1_008)

  await rm(file)
  space.freeMib = 1_008
  assert.equal(await sum(volume), 1_008)
  space.freeMib = 1_000 // Another program takes what was freed.
  assert.ok((await sum(volume)) <= 1_008)

  // After a restart it is the same as without.
  await writeFile(file, Buffer.alloc(8 * MIB, 1))
  assert.equal(await sum(reopen()), 1_008)
  const cached = reopen()
  cached.leaveOut(() => 3 * MIB)
  assert.equal((await cached.report()).sandboxes_mib, 5)
})

test('what sandboxes take is counted once, however many names a file has', async (t) => {
  const folder = await makeFolder(t)
  const file = path.join(folder, 'bodies', 'vmm', 'work', 'disk-0.qcow2')
  await mkdir(path.dirname(file), { recursive: true })
  await mkdir(path.join(folder, 'snapshots'))
  await writeFile(file, Buffer.alloc(3 * MIB, 1))
  await link(file, path.join(folder, 'snapshots', 'object'))
  await writeFile(path.join(folder, 'other'), Buffer.alloc(8 * MIB, 1))

  const bytes = await sumFolders([
    path.join(folder, 'bodies'),
    path.join(folder, 'snapshots'),
    path.join(folder, 'none'),
  ])
  const report = await openVolume(folder, 0).report()

  assert.ok(bytes >= 3 * MIB && bytes < 4 * MIB)
  assert.equal(report.sandboxes_mib, 3)
  assert.ok(report.free_mib > 0 && report.free_mib <= report.total_mib)
})
