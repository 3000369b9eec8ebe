import assert from 'node:assert/strict'
import { writeFile } from 'node:fs/promises'
import path from 'node:path'
import { test } from 'node:test'
import { runCommand } from '../run-command.ts'
import { type CpioEntry, renderCpio } from './cpio.ts'
import { makeFolder } from './testing.ts'

const ENTRIES: CpioEntry[] = [
  { type: 'directory', path: '/dev' },
  { type: 'character-device', path: 'dev/console', major: 5, minor: 1 },
  { type: 'file', path: 'init', mode: 0o755, data: Buffer.from('#!') },
  { type: 'file', path: 'empty', data: Buffer.alloc(0) },
  { type: 'symlink', path: 'linuxrc', target: 'init' },
]

test('an entry is a header of 110 digits, a name and data, padded to multiples of four bytes', () => {
  const records = parse(renderCpio(ENTRIES))

  assert.deepEqual(
    records.map(({ name, mode, data, rdev }) => [name, mode.toString(8), data, rdev]),
    [
      ['dev', '40755', '', [0, 0]],
      ['dev/console', '20600', '', [5, 1]],
      ['init', '100755', '#!', [0, 0]],
      ['empty', '100644', '', [0, 0]],
      ['linuxrc', '120777', 'init', [0, 0]],
      ['TRAILER!!!', '0', '', [0, 0]],
    ],
  )
})

test('every entry has another inode number, so that the kernel makes no hard links', () => {
  const inodes = parse(renderCpio(ENTRIES)).map(({ inode }) => inode)

  assert.equal(new Set(inodes).size, inodes.length)
})

test('the same content gives the same bytes', () => {
  assert.ok(renderCpio(ENTRIES).equals(renderCpio(ENTRIES)))
})

test('the root and the name of the trailer are not allowed as entries', () => {
  for (const name of ['/', '', 'TRAILER!!!']) {
    assert.throws(() => renderCpio([{ type: 'directory', path: name }]), /is not allowed as a name/)
  }
})

test('cpio(1) can read the archive', async (t) => {
  const listed = await runCommand('sh', ['-c', 'command -v cpio']).then((found) => found.exitCode === 0)
  if (!listed) return t.skip('cpio is not installed')
  const file = path.join(await makeFolder(t), 'archive')
  await writeFile(file, renderCpio(ENTRIES))

  const { stdout, exitCode } = await runCommand('cpio', ['--list', '--quiet', '--file', file])

  assert.deepEqual([exitCode, stdout.trim().split('\n')], [0, ['dev', 'dev/console', 'init', 'empty', 'linuxrc']])
})

function parse(archive: Buffer) {
  const records: { name: string; inode: number; mode: number; data: string; rdev: [number, number] }[] = []
  for (let at = 0; at < archive.length; ) {
    const header = archive.toString('latin1', at, at + 110)
    assert.match(header, /^070701[0-9a-f]{104}$/)
    const field = (index: number) => Number.parseInt(header.slice(6 + index * 8, 14 + index * 8), 16)
    const [nameLength, dataLength] = [field(11), field(6)]
    const dataAt = aligned(at + 110 + nameLength)
    const name = archive.toString('utf8', at + 110, at + 110 + nameLength - 1)
    const data = archive.toString('utf8', dataAt, dataAt + dataLength)
    records.push({ name, inode: field(0), mode: field(1), data, rdev: [field(9), field(10)] })
    at = aligned(dataAt + dataLength)
  }
  return records
}

const aligned = (at: number): number => Math.ceil(at / 4) * 4
