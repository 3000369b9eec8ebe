/** The library that makes QEMU before 8.2 open its memory for reading only (read-only-ram/). */
import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { closeSync, openSync, readFileSync } from 'node:fs'
import { chmod, copyFile, mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { type TestContext, test } from 'node:test'
import { FDS } from './args.ts'

const LIBRARY = path.resolve(import.meta.dirname, '../../../read-only-ram/target/warren/libread_only_ram.so')
const skip = process.getuid?.() !== 0 && 'needs root'
const ORDINARY_USER = 1_610_612_000

test('the memory file is opened although it cannot be written, and stays unwritable', { skip }, async (t) => {
  const { memory, run } = await setUp(t)

  assert.equal(run({}, '/proc/self/fd/7'), 'open: Permission denied')
  assert.equal(run({ preload: true }, '/proc/self/fd/7'), 'read: saved, write: Bad file descriptor')
  assert.equal(readFileSync(memory, 'utf8'), 'saved')
})

test('other files are opened as asked', { skip }, async (t) => {
  const { folder, run } = await setUp(t)
  const own = path.join(folder, 'own')
  await writeFile(own, 'saved')
  await chmod(own, 0o666)

  assert.equal(run({ preload: true }, own), 'read: saved, write: ok')
})

test('it is the descriptor of the memory that QEMU opens', () => {
  assert.equal(FDS.ram, 7)
  assert.ok(readFileSync(LIBRARY, 'latin1').includes(`/proc/self/fd/${FDS.ram}\0`))
})

async function setUp(t: TestContext) {
  const folder = await mkdtemp(path.join(tmpdir(), 'warren-read-only-ram-'))
  t.after(() => rm(folder, { recursive: true }))
  const [memory, library] = [path.join(folder, 'memory'), path.join(folder, 'library.so')]
  await writeFile(memory, 'saved', { mode: 0o444 })
  await copyFile(LIBRARY, library)
  for (const file of [folder, library]) await chmod(file, 0o755)
  const script = `use Fcntl; my $file = shift;
    sysopen(my $f, $file, O_RDWR) or do { print "open: $!"; exit };
    sysread($f, my $text, 5); print "read: $text, write: ", defined(syswrite($f, "changed")) ? "ok" : $!`
  const run = ({ preload = false }, file: string): string => {
    const fd = openSync(memory, 'r')
    try {
      const stdio = ['ignore', 'pipe', 'pipe', 'ignore', 'ignore', 'ignore', 'ignore', fd] as const
      const { stdout, stderr } = spawnSync('perl', ['-e', script, file], {
        stdio: [...stdio],
        uid: ORDINARY_USER,
        gid: ORDINARY_USER,
        env: { PATH: process.env.PATH, LC_ALL: 'C', ...(preload ? { LD_PRELOAD: library } : {}) },
        encoding: 'utf8',
      })
      return `${stdout}${stderr}`
    } finally {
      closeSync(fd)
    }
  }
  return { folder, memory, run }
}
