import assert from 'node:assert/strict'
import { mkdtemp, rm, stat, truncate, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { after, test } from 'node:test'
import { runCommand, runCommandOrThrow } from '../../../run-command.ts'
import { createOverlay, renderOverlay } from './overlay.ts'

const folder = await mkdtemp(path.join(tmpdir(), 'warren-overlay-'))
after(() => rm(folder, { recursive: true }))
const base = path.join(folder, 'base.raw')
await writeFile(base, 'the base says hello')
await truncate(base, 1024 * 1024)
const hasQemuImg = (await runCommand('sh', ['-c', 'command -v qemu-img'])).exitCode === 0

test('qemu-img accepts the overlay, with the right size and backing file', {
  skip: !hasQemuImg && 'no qemu-img here',
}, async () => {
  for (const sizeMib of [1, 10_240, 61_440]) {
    const file = path.join(folder, `o${sizeMib}.qcow2`)
    await createOverlay(file, { sizeMib, backing: { file: base, format: 'raw' } })

    const info = JSON.parse((await runCommandOrThrow('qemu-img', ['info', '--output=json', file])).stdout)
    const check = await runCommand('qemu-img', ['check', file])

    assert.equal(info['virtual-size'], sizeMib * 1024 * 1024)
    assert.deepEqual([info['full-backing-filename'], info['backing-filename-format']], [base, 'raw'])
    assert.equal(check.exitCode, 0, check.stdout + check.stderr)
  }
})

test('an overlay reads from its backing file and takes writes', {
  skip: !hasQemuImg && 'no qemu-img here',
}, async () => {
  const file = path.join(folder, 'rw.qcow2')
  await createOverlay(file, { sizeMib: 64, backing: { file: base, format: 'raw' } })
  const io = (...commands: string[]) => runCommand('qemu-io', [...commands.flatMap((one) => ['-c', one]), file])

  const read = await io('read -v 0 32')
  const write = await io('write -P 0x5a 32M 64k', 'read -P 0x5a 32M 64k', 'read -P 0 40M 64k')
  const check = await runCommand('qemu-img', ['check', file])

  assert.match(read.stdout, /the.base.says/)
  assert.doesNotMatch(write.stdout, /failed/)
  assert.equal(check.exitCode, 0, check.stdout)
})

test('a new overlay takes up at most 256 KiB', async () => {
  const file = path.join(folder, 'sparse.qcow2')
  await createOverlay(file, { sizeMib: 10_240, backing: { file: base, format: 'raw' } })

  assert.ok((await stat(file)).blocks * 512 <= 256 * 1024)
})

test('a size or name that does not fit is refused', () => {
  assert.throws(
    () => renderOverlay({ sizeMib: 8 * 1024 * 1024, backing: { file: 'x', format: 'raw' } }),
    /larger L1 table/,
  )
  assert.throws(() => renderOverlay({ sizeMib: 1, backing: { file: 'x'.repeat(2000), format: 'raw' } }), /too long/)
})
